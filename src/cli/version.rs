//! `version`: version, commit, features and embedded data of this build.

use std::fmt::Write as _;

use serde::Serialize;

use super::error::CliError;
use super::settings::Format;
use super::{Console, Exit, output};
use crate::catalog::Catalog;

/// Facts of this build.
#[derive(Debug, Serialize)]
pub(super) struct BuildInfo {
    pub(super) version: &'static str,
    /// The commit, if the build was given one in `FLEETWRIGHT_COMMIT`.
    pub(super) commit: Option<&'static str>,
    pub(super) features: Vec<&'static str>,
    /// Date of the embedded list prices.
    pub(super) prices_of: String,
}

impl BuildInfo {
    pub(super) fn current() -> Result<Self, CliError> {
        let catalog = Catalog::load(&"us-east-1".into(), &[])?;
        Ok(Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: option_env!("FLEETWRIGHT_COMMIT").filter(|commit| !commit.is_empty()),
            features: features(),
            prices_of: catalog.prices.date.clone(),
        })
    }
}

/// Returns the features that are built in.
fn features() -> Vec<&'static str> {
    let all = [
        ("cluster", cfg!(feature = "cluster")),
        ("live", cfg!(feature = "live")),
        ("page", cfg!(feature = "page")),
        ("policy", cfg!(feature = "policy")),
        ("sandbox", cfg!(feature = "sandbox")),
    ];
    all.into_iter().filter(|(_, built)| *built).map(|(name, _)| name).collect()
}

pub(super) fn run(format: Format, console: &mut Console) -> Result<Exit, CliError> {
    let info = BuildInfo::current()?;
    match format {
        Format::Document(format) => console.print(&output::document(&info, format)?)?,
        Format::Text => console.print(&text(&info))?,
    }
    Ok(Exit::Done)
}

fn text(info: &BuildInfo) -> String {
    let BuildInfo { version, commit, features, prices_of } = info;
    let mut text = format!("fleetwright {version}\n");
    if let Some(commit) = commit {
        let _ = writeln!(text, "commit:   {commit}");
    }
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    let _ = writeln!(text, "features: {features}");
    let _ = writeln!(text, "prices:   embedded list prices of {prices_of}");
    text
}

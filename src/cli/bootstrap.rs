//! `bootstrap aws`: writes the templates of an account: roles, queue and access to the cluster.
//!
//! The policies are those of `deploy/aws`, embedded. `setup` declares what an account needs, and
//! `cloudformation` and `terraform` write it in their syntax. Nothing is applied.

mod cloudformation;
mod next_steps;
mod policies;
mod queue;
mod setup;
mod terraform;

use std::path::Path;

use serde_json::Value as Json;

use super::args::TemplateFormatArg;
use super::error::CliError;
use super::output::{self, DocumentFormat};
use super::settings::BootstrapSettings;
use super::{Console, Exit, files};
use setup::Setup;

impl TemplateFormatArg {
    /// Returns the name of the template in a directory.
    fn file_name(self) -> &'static str {
        match self {
            Self::Cloudformation => "fleetwright.template.json",
            Self::Terraform => "fleetwright.tf.json",
        }
    }

    fn template(self, setup: &Setup) -> Json {
        match self {
            Self::Cloudformation => cloudformation::template(setup),
            Self::Terraform => terraform::configuration(setup),
        }
    }
}

/// The Kubernetes roles of the groups that CI jobs are in.
const RBAC: &str = include_str!("../../deploy/kubernetes/rbac.yaml");

/// Name of the file with the Kubernetes roles in a directory.
const RBAC_FILE: &str = "fleetwright.rbac.yaml";

pub(super) fn run(settings: &BootstrapSettings, console: &mut Console) -> Result<Exit, CliError> {
    use TemplateFormatArg::{Cloudformation, Terraform};
    let setup = Setup::from_settings(settings)?;
    let formats = match (settings.format, &settings.out) {
        (Some(format), _) => vec![format],
        (None, Some(_)) => vec![Cloudformation, Terraform],
        (None, None) => vec![Cloudformation],
    };
    for format in &formats {
        let text = output::document(&format.template(&setup), DocumentFormat::Json)?;
        match &settings.out {
            None => console.print(&text)?,
            Some(directory) => write(directory, format.file_name(), &text, console)?,
        }
    }
    if let (Some(directory), true) = (&settings.out, setup.has_ci()) {
        write(directory, RBAC_FILE, RBAC, console)?;
    }
    console.report_raw(&next_steps::text(&setup, &formats, settings.out.as_deref()));
    Ok(Exit::Done)
}

fn write(directory: &Path, name: &str, text: &str, console: &mut Console) -> Result<(), CliError> {
    std::fs::create_dir_all(directory).map_err(|error| {
        CliError::new(error).context(format!("cannot create `{}`", directory.display()))
    })?;
    let path = directory.join(name);
    files::write(&path, text)?;
    console.report(&format!("Wrote {}.", path.display()));
    Ok(())
}

#[cfg(test)]
mod tests;

//! The place from which `apply` is called, and whether a plan is of it.
//!
//! A plan file does not choose its judges. Settings, policies, keys and files come from the place
//! that the caller names, by default the working directory. The path and the repository in the plan
//! are compared with it, and never read or fetched by themselves.

use std::path::Path;

use super::Exit;
use super::error::CliError;
use super::settings::SourceSettings;
use crate::adapters::git::{RemoteRepository, TreeBase};
use crate::plan::Plan;
use crate::plan::wire::Base;

/// Refuses a plan of another repository or of another directory than `here`, which was read at the
/// place of the caller.
pub(super) fn check_origin(
    plan: &Plan,
    here: &TreeBase,
    caller: &SourceSettings,
) -> Result<(), CliError> {
    let base = &plan.capacity.base;
    let (planned, found) = match (&base.directory, &here.commit) {
        (Some(_), Some(_)) => {
            let (planned, found) = (base.repository.as_deref(), here.repository.as_deref());
            if planned.map(repository_key) != found.map(repository_key) {
                return Err(other_place(&repository(planned), &repository(found), base));
            }
            (base.directory.clone().unwrap_or_default(), here.below.clone())
        }
        (None, None) if base.tree == here.tree => return Ok(()),
        // A new repository has files before its first commit.
        (None, None) => (canonical(Path::new(&base.path)), canonical(&caller.path)),
        (Some(_), None) => {
            let planned = repository(base.repository.as_deref());
            return Err(other_place(&planned, NO_REPOSITORY, base));
        }
        (None, Some(_)) => {
            let found = repository(here.repository.as_deref());
            return Err(other_place(NO_REPOSITORY, &found, base));
        }
    };
    if planned == found {
        return Ok(());
    }
    Err(other_place(&directory_text(&planned), &directory_text(&found), base))
}

const NO_REPOSITORY: &str = "a directory that is in no Git repository";

fn repository(url: Option<&str>) -> String {
    url.map_or_else(
        || "a Git repository without a remote".to_owned(),
        |url| format!("repository `{url}`"),
    )
}

fn other_place(planned: &str, here: &str, base: &Base) -> CliError {
    CliError::text(format!("the plan is of {planned}, and the files here are of {here}"))
        .kind(Exit::OtherCluster)
        .hint(path_hint(base))
}

fn path_hint(base: &Base) -> String {
    format!("if you trust `{}`, name it: --path {}", base.path, base.path)
}

fn directory_text(directory: &str) -> String {
    if directory.is_empty() { "the root".to_owned() } else { format!("`{directory}`") }
}

fn canonical(path: &Path) -> String {
    let resolved = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    resolved.display().to_string()
}

/// Returns a spelling of a repository URL without its protocol, user and suffix: `git@h:o/r.git` and
/// `https://h/o/r` are one repository.
fn repository_key(url: &str) -> String {
    let text = match url.split_once("://") {
        Some((_, rest)) => rest.to_owned(),
        // An address as of SSH has a colon in place of the first slash.
        None if RemoteRepository::parse(&format!("git@{url}")).is_some() => {
            url.replacen(':', "/", 1)
        }
        None => url.to_owned(),
    };
    let text = text.rsplit_once('@').map_or(text.as_str(), |(_, rest)| rest);
    let text = text.trim_end_matches('/');
    let text = text.strip_suffix(".git").unwrap_or(text);
    match text.split_once('/') {
        Some((host, path)) => format!("{}/{path}", host.to_lowercase()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::sample_plan;

    fn check(
        planned: (Option<&str>, Option<&str>),
        here: (Option<&str>, Option<&str>),
    ) -> Result<(), CliError> {
        let mut plan = sample_plan::plan();
        let base = &mut plan.capacity.base;
        base.repository = planned.0.map(str::to_owned);
        base.directory = planned.1.map(str::to_owned);
        let here = TreeBase {
            repository: here.0.map(str::to_owned),
            commit: here.1.map(|_| "c".to_owned()),
            below: here.1.unwrap_or_default().to_owned(),
            ..TreeBase::default()
        };
        let caller = SourceSettings { path: ".".into(), revision: None };
        check_origin(&plan, &here, &caller)
    }

    #[test]
    fn plan_of_another_repository_or_path_is_refused() {
        let github = Some("https://github.com/acme/fleet");
        for (planned, here) in [
            ((github, Some("")), (Some("git@GitHub.com:acme/fleet.git"), Some(""))),
            ((github, Some("a")), (Some("ssh://git@github.com/acme/fleet/"), Some("a"))),
            ((None, Some("a")), (None, Some("a"))),
        ] {
            assert!(check(planned, here).is_ok(), "{planned:?} {here:?}");
        }
        for (planned, here) in [
            ((Some("file:///tmp/hers"), Some("")), (github, Some(""))),
            ((Some("https://github.com/eve/fleet"), Some("")), (github, Some(""))),
            ((Some("https://github.com.evil/acme/fleet"), Some("")), (github, Some(""))),
            ((github, Some("")), (None, Some(""))),
            ((None, Some("")), (github, Some(""))),
            ((github, Some("clusters/dev")), (github, Some("clusters/prod"))),
            ((github, None), (github, Some(""))),
            ((github, Some("")), (github, None)),
            ((None, None), (None, None)),
        ] {
            let refused = check(planned, here).expect_err("of another place");
            assert_eq!(refused.kind, Exit::OtherCluster, "{planned:?} {here:?}");
            let text = refused.to_string();
            let (planned, here) = text.split_once(", and the files here are of ").expect("both");
            assert_ne!(planned.strip_prefix("the plan is of "), Some(here), "{text}");
        }
    }
}

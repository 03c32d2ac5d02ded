//! `explain`: the reasons for a pod, a node or a pool of a plan.

use super::error::CliError;
use super::repository::Repository;
use super::settings::{ExplainSettings, Format, PlanSource, SourceSettings};
use super::signature_check::SignatureTrust;
use super::{Console, Exit, files, output, planning, source_tree};
use crate::adapters::git::RemoteRepository;
use crate::plan::Plan;
use crate::render::{ExplainError, Explanation, Verbosity, explain, incompleteness_text};

pub(super) fn run(settings: &ExplainSettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = match &settings.plan {
        PlanSource::Saved(path) => files::saved_plan(path, console)?,
        PlanSource::Fresh(settings) => planning::plan(settings, console)?,
    };
    // An answer from incomplete inputs may be wrong, and a missing name may be in an unread part.
    let missing = incompleteness_text(&plan, &console.message_style());
    console.report_raw(&missing);
    let repository;
    let found = match explain(&plan, None, &settings.query) {
        // Limits of pools are in the repository, not in the plan.
        Ok(Explanation::Pool(_)) | Err(ExplainError::Unknown { .. }) => {
            let trust = SignatureTrust::default();
            repository = source(settings, &plan)
                .map(|source| source_tree::read_planned(&plan, &source, &trust, &|_| Ok(None)));
            let desired = repository.as_ref().and_then(|read| read.as_ref().ok());
            explain(&plan, desired.map(|repository| &repository.desired), &settings.query)
                .map_err(|error| unknown_name(error, repository.as_ref()))?
        }
        other => other?,
    };
    let text = match settings.format {
        Format::Text => found.text(&console.style(Verbosity::Full)),
        Format::Document(format) => output::document(&found.json(), format)?,
    };
    console.print(&text)?;
    Ok(if plan.errored { Exit::Failed } else { Exit::Done })
}

/// Returns the error of an unknown name. The name may be in a repository that was not read.
fn unknown_name(
    error: ExplainError,
    repository: Option<&Result<Repository, CliError>>,
) -> CliError {
    let error = CliError::from(error);
    match repository {
        Some(Err(cause)) => error.hint(format!("the planned repository was not read: {cause}")),
        Some(Ok(_)) | None => error,
    }
}

/// Returns the place of the plan's files, unless only the plan names a URL: it is not fetched.
fn source(settings: &ExplainSettings, plan: &Plan) -> Option<SourceSettings> {
    match &settings.plan {
        PlanSource::Fresh(planning) => Some(planning.source.clone()),
        PlanSource::Saved(_) => {
            let path = &plan.capacity.base.path;
            let source = SourceSettings { path: path.into(), revision: None };
            RemoteRepository::parse(path).is_none().then_some(source)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Exit;
    use crate::cli::tests::{copied_quickstart, run_command};

    #[test]
    fn an_unread_repository_is_the_hint_of_an_unknown_name() {
        let tree = copied_quickstart();
        let shop = tree.path().join("quickstart");
        let file = tree.path().join("plan.json");
        let [path, saved] = [&shop, &file].map(|path| path.to_str().expect("UTF-8"));
        let planned = run_command(&["plan", path, "--at", "2026-11-01T09:00:00Z", "--out", saved]);
        assert!(file.exists(), "{}", planned.err);
        let explain = || run_command(&["explain", "nodepool/absent", "--plan", saved]).err;
        assert!(!explain().contains("was not read"), "{}", explain());
        std::fs::remove_dir_all(&shop).expect("removed");
        let hint = "hint:  the planned repository was not read: ";
        assert!(explain().contains(hint), "{}", explain());
    }

    #[test]
    fn errors_of_the_repository_are_stated_and_end_with_1() {
        let tree = copied_quickstart();
        let shop = tree.path().join("quickstart");
        let path = shop.to_str().expect("UTF-8");
        let at = ["--at", "2026-11-01T09:00:00Z"];
        let shown = |query: &str| run_command(&[&["explain", query, path], &at[..]].concat());
        let whole = shown("shop/web");
        assert_eq!((whole.exit, whole.err.as_str()), (Exit::Done, ""), "{}", whole.err);
        std::fs::write(shop.join("apps/shop.yaml"), "a: [").expect("written");
        let broken = shown("shop/web");
        assert_eq!(broken.exit, Exit::Failed);
        assert!(broken.err.starts_with("Incomplete: 1 error"), "{}", broken.err);
        assert!(broken.err.contains("error: apps/shop.yaml:2: is not YAML"), "{}", broken.err);
        let decided =
            "9 pods planned, decided by the cluster, as it is not in the files that could";
        assert!(broken.out.contains(decided), "{}", broken.out);
        let unknown = shown("shop/wep");
        assert_eq!(unknown.exit, Exit::Failed);
        assert!(unknown.err.contains("error: apps/shop.yaml:2: is not YAML"), "{}", unknown.err);
        let drift = run_command(&[&["drift", path], &at[..]].concat());
        assert_eq!(drift.exit, Exit::Failed);
        assert!(drift.out.contains("error: apps/shop.yaml:2: is not YAML"), "{}", drift.out);
        assert!(!drift.out.contains("declares 0"), "{}", drift.out);
    }
}

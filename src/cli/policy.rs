//! Policies: which ones judge a plan, and their own tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::CliError;
use super::planning;
use super::repository::FleetSettings;
use super::settings::{GuardChoice, PolicyTestSettings, SourceSettings};
use super::{Console, Exit, files};
use crate::git::{TreeRead, read_named};
use crate::plan::Plan;
use crate::plan::wire::Guard;
use crate::policy::{Bundle, Limits, PolicyFile, TestOutcome, attach, evaluate, run_tests};

/// Most bytes of a file of data.
const DATA_BYTES_MAX: u64 = 8 << 20;

/// What a plan is judged by: policies, and who may apply it when.
pub(super) struct Judge {
    bundle: Bundle,
    pub(super) fleet: FleetSettings,
    /// Where that was read, where it is not the tree that is planned.
    pub(super) guard: Option<Guard>,
    /// The commits of that revision and those before it, by name: what the chain of signatures begins
    /// with. Empty where nothing outside the tree guards.
    pub(super) trusted: BTreeSet<String>,
}

impl Judge {
    /// Reads what guards `source`: from the revision that `choice` names, else from the tree itself.
    ///
    /// A pull request must not loosen the rules that it is judged by; so where a revision is named,
    /// nothing of the tree counts, not even that it has policies.
    pub(super) fn read(
        source: &SourceSettings,
        tree: &TreeRead,
        choice: &GuardChoice,
    ) -> Result<Self, CliError> {
        let own = FleetSettings::read(tree);
        let guarding = choice.revision.as_ref().map(|revision| {
            let revision = Some(revision.clone());
            planning::read(&SourceSettings { revision, ..source.clone() })
        });
        let mut trusted = BTreeSet::new();
        let (fleet, guard) = match guarding.transpose()? {
            None => (own, None),
            Some(read) => {
                let commits = read.proof.iter().flat_map(|proof| &proof.commits);
                trusted.extend(commits.map(|commit| commit.id.clone()));
                let fleet = FleetSettings::read(&read);
                let changed = (&fleet.policies, &fleet.guard) != (&own.policies, &own.guard)
                    || texts(source, &fleet.policies, choice.revision.as_deref())?
                        != texts(source, &own.policies, source.revision.as_deref())?;
                let revision = choice.revision.clone().unwrap_or_default();
                (fleet, Some(Guard { revision, commit: read.base.commit, changed }))
            }
        };
        let revision = choice.revision.as_deref().or(source.revision.as_deref());
        let mut bundle = texts(source, &fleet.policies, revision)?;
        for directory in &choice.policies {
            add(&mut bundle, (directory, None), None)?;
        }
        for path in &choice.data {
            let bytes = files::read(path, DATA_BYTES_MAX)?;
            let text = String::from_utf8(bytes).map_err(CliError::new)?;
            bundle.data.push(PolicyFile { path: path.display().to_string(), text });
        }
        Ok(Self { bundle, fleet, guard, trusted })
    }

    /// Adds what the policies say to the plan.
    pub(super) fn judge(&self, plan: &mut Plan) {
        let checks = evaluate(plan, &self.bundle, Limits::default());
        attach(plan, checks);
    }
}

/// Reads the directories of policies that `fleetwright.yaml` names.
fn texts(
    source: &SourceSettings,
    directories: &[String],
    revision: Option<&str>,
) -> Result<Bundle, CliError> {
    let mut bundle = Bundle::default();
    for directory in directories {
        let own = source.path.join(directory);
        add(&mut bundle, (&own, Some(&source.path)), revision)?;
    }
    Ok(bundle)
}

/// Adds the policies in `directory`, which is below `root` where that is given.
fn add(
    bundle: &mut Bundle,
    (directory, root): (&Path, Option<&Path>),
    revision: Option<&str>,
) -> Result<(), CliError> {
    let found = read_named(directory, root, revision, &[".rego", ".json"]).map_err(|error| {
        CliError::new(error)
            .context("cannot read the policies".to_owned())
            .hint("name a directory that holds policies: `.rego` files, and data as `.json`")
    })?;
    for file in found {
        let path = directory.join(&file.path).display().to_string();
        let is_data = Path::new(&path).extension().is_some_and(|end| end == "json");
        let list = if is_data { &mut bundle.data } else { &mut bundle.files };
        list.push(PolicyFile { path, text: file.text });
    }
    Ok(())
}

/// Runs the tests of policies, and the same tests by conftest where that is installed.
pub(super) fn test(settings: &PolicyTestSettings, console: &mut Console) -> Result<Exit, CliError> {
    let mut bundle = Bundle::default();
    for directory in &settings.directories {
        add(&mut bundle, (directory, None), None)?;
    }
    let results = run_tests(&bundle, Limits::default()).map_err(|broken| {
        CliError::text(format!("the policies cannot be read: {}", broken.join("; ")))
            .hint("`opa fmt` and `opa check` say more about Rego")
    })?;
    let mut text = String::new();
    let mut failed = 0;
    for result in &results {
        let line = match &result.outcome {
            TestOutcome::Pass => format!("pass   {}\n", result.name),
            TestOutcome::Fail => format!("FAIL   {}\n", result.name),
            TestOutcome::Error(reason) => format!("ERROR  {}: {reason}\n", result.name),
        };
        failed += usize::from(result.outcome != TestOutcome::Pass);
        text.push_str(&line);
    }
    console.print(&format!(
        "{text}\n{} tests, {} passed, {failed} failed\n",
        results.len(),
        results.len() - failed
    ))?;
    if results.is_empty() {
        return Err(CliError::text("there is no test").hint("name a rule `test_…`"));
    }
    let by_conftest = conftest(&settings.directories, results.len(), console)?;
    Ok(if failed == 0 && by_conftest { Exit::Done } else { Exit::Failed })
}

/// Runs `conftest verify`; returns whether it agrees, which it does where it is not installed.
fn conftest(
    directories: &[PathBuf],
    tests: usize,
    console: &mut Console,
) -> Result<bool, CliError> {
    let mut command = Command::new("conftest");
    command.arg("verify");
    for directory in directories {
        command.arg("--policy").arg(directory);
    }
    // Data of a directory of policies stands in it.
    for directory in directories {
        command.arg("--data").arg(directory);
    }
    match command.output() {
        Err(_) => {
            console
                .print(&format!("conftest is not installed: {tests} tests unchecked by it\n"))?;
            Ok(true)
        }
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            let verdict = if output.status.success() { "agrees" } else { "DISAGREES" };
            console
                .print(&format!("conftest {verdict}: {}\n", crate::render::escape(said.trim())))?;
            Ok(output.status.success())
        }
    }
}

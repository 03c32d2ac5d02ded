//! Policies: which ones judge a plan, and their own tests.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use super::error::CliError;
use super::repository::{FleetSettings, Repository};
use super::settings::{GuardChoice, PolicyTestSettings, SourceSettings};
use super::{Console, Exit, embedded, files, planning};
use crate::git::{CloneCache, Remote, TreeRead, read_named};
use crate::ids::hex;
#[cfg(feature = "live")]
use crate::manifest::GuardSettings;
use crate::plan::wire::{Base, Guard, JudgedBy};
use crate::plan::{Plan, seal};
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
    /// nothing of the tree counts, not even that it has policies. Errors in the tree's own settings
    /// are errors of its plan.
    pub(super) fn read(
        source: &SourceSettings,
        tree: &TreeRead,
        choice: &GuardChoice,
    ) -> Result<Self, CliError> {
        let own = FleetSettings::read(tree);
        let Some(revision) = &choice.revision else {
            let bundle = bundle(source, &own, choice)?;
            return Ok(Self { bundle, fleet: own, guard: None, trusted: BTreeSet::new() });
        };
        let guarding = SourceSettings { revision: Some(revision.clone()), ..source.clone() };
        let read = planning::read(&guarding)?;
        let commits = read.proof.iter().flat_map(|proof| &proof.commits);
        let trusted = commits.map(|commit| commit.id.clone()).collect();
        let fleet = FleetSettings::guarding(&read)?;
        let changed = (&fleet.policies, &fleet.guard) != (&own.policies, &own.guard)
            || texts(&guarding, &fleet.policies)? != texts(source, &own.policies)?;
        let guard = Guard { revision: revision.clone(), commit: read.base.commit, changed };
        let bundle = bundle(&guarding, &fleet, choice)?;
        Ok(Self { bundle, fleet, guard: Some(guard), trusted })
    }

    /// Reads what guards the apply of `plan`: the revision that `choice` names, else the one that
    /// guarded when it was made, else the commit that was planned; the files on disk only where those
    /// were planned, and as they were then.
    ///
    /// Whatever judged the plan when it was made judges it again.
    pub(super) fn of_apply(plan: &Plan, choice: &GuardChoice) -> Result<Self, CliError> {
        let (source, fleet) = guarding(plan, choice)?;
        let bundle = bundle(&source, &fleet, choice)?;
        missing(&plan.capacity.base, &bundle)?;
        Ok(Self { bundle, fleet, guard: None, trusted: BTreeSet::new() })
    }

    /// Adds to the plan what the policies say of it, and which they are.
    pub(super) fn record(&self, plan: &mut Plan) {
        let files = self.bundle.files.iter().chain(&self.bundle.data);
        plan.capacity.base.judged_by = files.map(judged_by).collect();
        plan.capacity.base.judged_by.sort();
        plan.capacity.base.guard.clone_from(&self.guard);
        self.judge(plan);
        seal(plan);
    }

    /// Adds to the plan what the policies say of it.
    pub(super) fn judge(&self, plan: &mut Plan) {
        let checks = evaluate(plan, &self.bundle, Limits::default());
        attach(plan, checks);
    }
}

/// Returns who may apply `plan`, and when.
#[cfg(feature = "live")]
pub(super) fn guard_of(plan: &Plan) -> Result<GuardSettings, CliError> {
    Ok(guarding(plan, &GuardChoice::default())?.1.guard)
}

/// Returns where the settings are that guard the apply of `plan`, and the settings.
fn guarding(
    plan: &Plan,
    choice: &GuardChoice,
) -> Result<(SourceSettings, FleetSettings), CliError> {
    let base = &plan.capacity.base;
    let recorded = base.guard.as_ref().map(|guard| guard.commit.as_ref());
    let planned = base.commit.as_ref().filter(|_| !base.dirty);
    let revision = choice.revision.as_ref().or(recorded.flatten()).or(planned).cloned();
    let source = SourceSettings { path: PathBuf::from(&base.path), revision };
    let read = planning::read(&source)
        .map_err(|error| error.context("cannot read what guards the plan".to_owned()))?;
    if source.revision.is_none() {
        let here = Repository::read(&read);
        if here.base.tree != base.tree {
            return Err(embedded::other_files(plan, &here.fleet));
        }
    }
    let fleet = FleetSettings::guarding(&read)?;
    Ok((source, fleet))
}

/// Reads what judges: the policies that the guarding settings name, and those that are given beside.
fn bundle(
    guarding: &SourceSettings,
    fleet: &FleetSettings,
    choice: &GuardChoice,
) -> Result<Bundle, CliError> {
    let mut bundle = texts(guarding, &fleet.policies)?;
    for directory in &choice.policies {
        let given = SourceSettings { path: directory.clone(), revision: None };
        add(&mut bundle, &given, "")?;
    }
    for path in &choice.data {
        let bytes = files::read(path, DATA_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(CliError::new)?;
        bundle.data.push(PolicyFile { path: path.display().to_string(), text });
    }
    Ok(bundle)
}

fn judged_by(file: &PolicyFile) -> JudgedBy {
    let PolicyFile { path, text } = file;
    JudgedBy { path: path.clone(), sha256: hex(&Sha256::digest(text)) }
}

/// Refuses to go on without a file that judged the plan when it was made, as it was then.
fn missing(base: &Base, bundle: &Bundle) -> Result<(), CliError> {
    let given: BTreeSet<String> =
        bundle.files.iter().chain(&bundle.data).map(|file| judged_by(file).sha256).collect();
    let missing = base.judged_by.iter().filter(|file| !given.contains(&file.sha256));
    let missing: Vec<&str> = missing.map(|file| file.path.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join("`, `");
    Err(CliError::text(format!("the plan was judged by `{missing}`, which is not given as it was"))
        .kind(Exit::NotApproved)
        .hint("pass the same --policy, --policy-data and --guard-ref as when it was planned")
        .hint("or plan again, by the policies that count now"))
}

/// Reads the directories of policies that `fleetwright.yaml` names.
fn texts(source: &SourceSettings, directories: &[String]) -> Result<Bundle, CliError> {
    let mut bundle = Bundle::default();
    for directory in directories {
        add(&mut bundle, source, directory)?;
    }
    Ok(bundle)
}

/// Adds the policies and data of a directory below `source`, which must hold some.
fn add(bundle: &mut Bundle, source: &SourceSettings, directory: &str) -> Result<(), CliError> {
    const HINT: &str = "name a directory that holds policies: `.rego` files, and data as `.json`";
    let SourceSettings { path, revision } = source;
    let ends = [".rego", ".json"];
    let remote = path.to_str().and_then(Remote::parse);
    let found = if let Some(remote) = &remote {
        let cache = CloneCache::of_environment()?;
        remote.read_named(directory, revision.as_deref(), &ends, &cache)
    } else {
        // What the settings name is below their own root; what the caller names is anywhere.
        let below = !directory.is_empty();
        let place = if below { path.join(directory) } else { path.clone() };
        let root = Some(path.as_path()).filter(|_| below);
        read_named(&place, root, revision.as_deref(), &ends)
    };
    let found = found.map_err(|error| {
        CliError::new(error).context("cannot read the policies".to_owned()).hint(HINT)
    })?;
    let named = match &remote {
        Some(_) => PathBuf::from(directory),
        None => path.join(directory),
    };
    if !found.iter().any(|file| is_rego(&file.path)) {
        let named = named.display();
        return Err(CliError::text(format!("`{named}` holds no policy")).hint(HINT));
    }
    for file in found {
        let list = if is_rego(&file.path) { &mut bundle.files } else { &mut bundle.data };
        let path = named.join(&file.path).display().to_string();
        list.push(PolicyFile { path, text: file.text });
    }
    Ok(())
}

fn is_rego(path: &str) -> bool {
    Path::new(path).extension().is_some_and(|end| end == "rego")
}

/// Runs the tests of policies, and the same tests by conftest where that is installed.
pub(super) fn test(settings: &PolicyTestSettings, console: &mut Console) -> Result<Exit, CliError> {
    let mut bundle = Bundle::default();
    for directory in &settings.directories {
        let given = SourceSettings { path: directory.clone(), revision: None };
        add(&mut bundle, &given, "")?;
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
        Err(error) if error.kind() != ErrorKind::NotFound => {
            console.print(&format!("conftest cannot be started: {error}\n"))?;
            Ok(false)
        }
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

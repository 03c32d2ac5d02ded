//! Policies: which policies judge a plan, and their own tests.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use super::error::CliError;
use super::plan_origin::check_origin;
use super::repository::{FleetSettings, Repository};
use super::settings::{GuardChoice, PolicyTestSettings, SourceSettings};
use super::signature_check::SignatureTrust;
use super::{Console, Exit, files, policy_process, source_tree};
use crate::adapters::git::{
    CloneCache, GitError, GitErrorKind, RemoteRepository, RepositoryTree, read_text_files,
};
use crate::adapters::subprocess::{RunError, run};
#[cfg(feature = "live")]
use crate::model::desired::ApplyConditions;
use crate::model::desired::Problem;
use crate::model::ids::Origin;
use crate::plan::wire::{Base, Check, JudgedBy, TrustedRevision};
use crate::plan::{Plan, set_identity};
use crate::policy::{Bundle, PolicyFile, TestOutcome, attach_checks};

/// Most bytes of a policy data file.
const DATA_BYTES_MAX: u64 = 8 << 20;

/// What a directory of policies contains.
const DIRECTORY_HINT: &str =
    "name a directory that contains policies: `.rego` files, and data as `.json`";

/// Hex digits by which the controller remembers a policy.
const HASH_CHARS: usize = 32;

/// The policies that judge a plan, and the settings that guard its apply.
#[derive(Debug)]
pub(super) struct Judge {
    bundle: Bundle,
    pub(super) fleet: FleetSettings,
    /// The revision that they come from, unless it is the planned tree.
    pub(super) guard: Option<TrustedRevision>,
    /// The guarding revision and its ancestors, from which the chain of signatures starts.
    pub(super) trust: SignatureTrust,
    /// The source of the settings, for messages.
    pub(super) settings_source: String,
}

impl Judge {
    /// Reads the policies and settings that guard `source`: from the revision of `choice`,
    /// otherwise from the tree itself.
    ///
    /// A pull request must not loosen its own rules. With a revision, neither the settings nor the
    /// policies of the tree count. Errors in the settings of the tree are errors of its plan.
    pub(super) fn read(
        source: &SourceSettings,
        tree: &RepositoryTree,
        choice: &GuardChoice,
    ) -> Result<Self, CliError> {
        let own = FleetSettings::read(tree);
        let Some(revision) = &choice.revision else {
            let bundle = read_bundle(source, &own, choice)?;
            let settings_source = format!("`{}`", source.path.display());
            let trust = SignatureTrust::default();
            return Ok(Self { bundle, fleet: own, guard: None, trust, settings_source });
        };
        let guarding = SourceSettings { revision: Some(revision.clone()), ..source.clone() };
        let read = source_tree::read(&guarding)?;
        let fleet = FleetSettings::read_guarding(&read)?;
        let trust = trust_in(&read, &fleet);
        let changed = (&fleet.policies, &fleet.guard) != (&own.policies, &own.guard)
            || read_policies(&guarding, &fleet.policies)? != read_policies(source, &own.policies)?;
        let guard =
            TrustedRevision { revision: revision.clone(), commit: read.base.commit, changed };
        let bundle = read_bundle(&guarding, &fleet, choice)?;
        let settings_source = format!("revision {revision}");
        Ok(Self { bundle, fleet, guard: Some(guard), trust, settings_source })
    }

    /// Reads the policies and settings that guard the apply of `plan`, at the place of the caller:
    /// from the revision of `choice`, otherwise from the commit that is checked out there. Files on
    /// disk count only if they were planned and are unchanged.
    ///
    /// Every policy that judged the plan must judge it again.
    pub(super) fn for_apply(
        plan: &Plan,
        choice: &GuardChoice,
        caller: &SourceSettings,
    ) -> Result<Self, CliError> {
        let GuardingSource { source, fleet, tree } = read_guarding_source(plan, choice, caller)?;
        refuse_looser_guard(plan, choice)?;
        let named = choice.revision.is_some();
        let trust = if named { trust_in(&tree, &fleet) } else { SignatureTrust::default() };
        let bundle = read_bundle(&source, &fleet, choice)?;
        refuse_missing(&plan.capacity.base, &bundle)?;
        let settings_source = settings_source(choice, &source);
        Ok(Self { bundle, fleet, guard: None, trust, settings_source })
    }

    /// Returns a hash of path and content of each policy and data file. The order of the paths decides
    /// which of two values counts.
    pub(super) fn policy_hashes(&self) -> BTreeSet<String> {
        let files = self.bundle.files.iter().chain(&self.bundle.data);
        let hash = |file| {
            let JudgedBy { path, sha256 } = judged_by(file);
            let hash = hex::encode(Sha256::digest(format!("{path}\n{sha256}")));
            hash.chars().take(HASH_CHARS).collect()
        };
        files.map(hash).collect()
    }

    /// Returns true if there are policies.
    pub(super) fn has_policies(&self) -> bool {
        !self.bundle.is_empty()
    }

    /// Adds the results of the policies to the plan, and the identity of the policies.
    pub(super) fn record(&self, plan: &mut Plan) {
        let before = PolicyRecord::from_plan(plan);
        let files = self.bundle.files.iter().chain(&self.bundle.data);
        plan.capacity.base.judged_by = files.map(judged_by).collect();
        plan.capacity.base.judged_by.sort();
        plan.capacity.base.guard.clone_from(&self.guard);
        self.judge(plan);
        // The identity of a large plan is expensive, and most plans have no policies.
        if PolicyRecord::from_plan(plan) != before {
            set_identity(plan);
        }
    }

    /// Adds the results of the policies to the plan.
    pub(super) fn judge(&self, plan: &mut Plan) {
        let checks = policy_process::evaluate(plan, &self.bundle);
        attach_checks(plan, checks);
    }
}

/// The fields of a plan that [`Judge::record`] sets.
#[derive(PartialEq, Eq)]
struct PolicyRecord {
    judged_by: Vec<JudgedBy>,
    guard: Option<TrustedRevision>,
    checks: Vec<Check>,
    is_applyable: bool,
}

impl PolicyRecord {
    fn from_plan(plan: &Plan) -> Self {
        let Base { judged_by, guard, .. } = plan.capacity.base.clone();
        Self { judged_by, guard, checks: plan.checks.clone(), is_applyable: plan.applyable }
    }
}

/// Returns the problems of the policies that the settings of a repository name.
pub(super) fn policy_problems(source: &SourceSettings, fleet: &FleetSettings) -> Vec<Problem> {
    let problem = |object: String, message: String| {
        Problem::error(Origin::new("fleetwright.yaml", 0), object, message)
    };
    match read_policies(source, &fleet.policies) {
        Err(error) => {
            let hint = error.hint_text();
            vec![problem("spec.policies".to_owned(), error.to_string()).maybe_hint(hint)]
        }
        Ok(bundle) => policy_process::load_errors(&bundle)
            .into_iter()
            .map(|(file, why)| {
                problem(format!("policy {file}"), why).hint("`opa check` says more about Rego")
            })
            .collect(),
    }
}

/// Returns the trust in a revision and its ancestors.
pub(super) fn trust_in(tree: &RepositoryTree, fleet: &FleetSettings) -> SignatureTrust {
    let commits = tree.signed_history.iter().flat_map(|proof| &proof.commits);
    SignatureTrust {
        commits: commits.map(|commit| commit.id.clone()).collect(),
        lists_signers: fleet.lists_signers,
        ..SignatureTrust::default()
    }
}

/// Returns the settings that guard the apply of `plan`.
#[cfg(feature = "live")]
pub(super) fn apply_guard(
    plan: &Plan,
    choice: &GuardChoice,
    caller: &SourceSettings,
) -> Result<ApplyConditions, CliError> {
    Ok(read_guarding_source(plan, choice, caller)?.fleet.guard)
}

/// Refuses a plan that another revision guarded, with other rules than its own, unless the caller
/// names a revision as well.
fn refuse_looser_guard(plan: &Plan, choice: &GuardChoice) -> Result<(), CliError> {
    match &plan.capacity.base.guard {
        Some(TrustedRevision { revision, changed: true, .. }) if choice.revision.is_none() => {
            Err(CliError::text(format!(
                "the plan changes settings or policies, and revision {revision} guards it"
            ))
            .kind(Exit::NotApproved)
            .hint(format!("name a revision that you trust, such as --guard-ref {revision}")))
        }
        Some(_) | None => Ok(()),
    }
}

/// The settings that guard the apply of a plan, with their source and their files.
struct GuardingSource {
    source: SourceSettings,
    fleet: FleetSettings,
    tree: RepositoryTree,
}

fn read_guarding_source(
    plan: &Plan,
    choice: &GuardChoice,
    caller: &SourceSettings,
) -> Result<GuardingSource, CliError> {
    let base = &plan.capacity.base;
    let is_committed = base.commit.is_some() && !base.dirty;
    let head = || is_committed.then(|| "HEAD".to_owned());
    let revision = choice.revision.clone().or_else(|| caller.revision.clone()).or_else(head);
    let source = SourceSettings { revision, ..caller.clone() };
    let tree = match source_tree::read(&source) {
        Ok(tree) => tree,
        Err(error) => {
            // Of another place, the plan is refused for that.
            if let Ok(here) = source_tree::read(caller) {
                check_origin(plan, &here.base, caller)?;
            }
            return Err(error.context("cannot read the settings that guard the plan".to_owned()));
        }
    };
    check_origin(plan, &tree.base, caller)?;
    if source.revision.is_none() {
        let here = Repository::read(&tree);
        if here.base.tree != base.tree {
            return Err(source_tree::changed_files_error(plan, caller, &here.fleet));
        }
    }
    let fleet = FleetSettings::read_guarding(&tree)?;
    Ok(GuardingSource { source, fleet, tree })
}

/// Returns the source of the settings that guard the apply of `plan`, in words.
fn settings_source(choice: &GuardChoice, source: &SourceSettings) -> String {
    match (&choice.revision, &source.revision) {
        (Some(named), _) => format!("revision {named}, named by --guard-ref"),
        (None, Some(revision)) => format!("{revision} of `{}`", source.path.display()),
        (None, None) => format!("`{}`, not committed", source.path.display()),
    }
}

/// Reads the policies of the guarding settings, and those of the command line.
fn read_bundle(
    guarding: &SourceSettings,
    fleet: &FleetSettings,
    choice: &GuardChoice,
) -> Result<Bundle, CliError> {
    let mut bundle = read_policies(guarding, &fleet.policies)?;
    for directory in &choice.policies {
        let given = SourceSettings { path: directory.clone(), revision: None };
        add_directory(&mut bundle, &given, "")?;
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
    JudgedBy { path: path.clone(), sha256: hex::encode(Sha256::digest(text)) }
}

/// Refuses to continue without a policy file that judged the plan, unchanged.
fn refuse_missing(base: &Base, bundle: &Bundle) -> Result<(), CliError> {
    let given: BTreeSet<String> =
        bundle.files.iter().chain(&bundle.data).map(|file| judged_by(file).sha256).collect();
    let missing = base.judged_by.iter().filter(|file| !given.contains(&file.sha256));
    let missing: Vec<&str> = missing.map(|file| file.path.as_str()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join("`, `");
    Err(CliError::text(format!(
        "the plan was judged by `{missing}`, which is missing or has changed"
    ))
    .kind(Exit::NotApproved)
    .hint("pass the same --policy, --policy-data and --guard-ref as when it was planned")
    .hint("or plan again with the current policies"))
}

/// Reads the policy directories of `fleetwright.yaml`.
fn read_policies(source: &SourceSettings, directories: &[String]) -> Result<Bundle, CliError> {
    let mut bundle = Bundle::default();
    for directory in directories {
        add_directory(&mut bundle, source, directory)?;
    }
    Ok(bundle)
}

/// Returns what to do about a directory of policies that cannot be read.
fn directory_hint(error: &GitError, is_in_settings: bool) -> String {
    let is_missing = error.kind == GitErrorKind::Missing;
    if is_missing && is_in_settings {
        return "create the directory, or correct spec.policies".to_owned();
    }
    // Their own hints are about manifests.
    let is_none = is_missing || error.kind == GitErrorKind::NotADirectory;
    error.hint().filter(|_| !is_none).unwrap_or_else(|| DIRECTORY_HINT.to_owned())
}

/// Adds the policies and data of a directory below `source`, which must hold a policy.
fn add_directory(
    bundle: &mut Bundle,
    source: &SourceSettings,
    directory: &str,
) -> Result<(), CliError> {
    let SourceSettings { path, revision } = source;
    let ends = [".rego", ".json"];
    let remote = path.to_str().and_then(RemoteRepository::parse);
    // Directories in the settings are below the repository root; directories on the command line
    // are anywhere.
    let below = !directory.is_empty();
    let found = if let Some(remote) = &remote {
        let cache = CloneCache::from_environment()?;
        remote.read_text_files(directory, revision.as_deref(), &ends, &cache)
    } else {
        let place = if below { path.join(directory) } else { path.clone() };
        let root = Some(path.as_path()).filter(|_| below);
        read_text_files(&place, root, revision.as_deref(), &ends)
    };
    let found = found.map_err(|error| {
        let hint = directory_hint(&error, below);
        CliError::new(error).context("cannot read the policies".to_owned()).hint(hint)
    })?;
    let named = match &remote {
        Some(_) => PathBuf::from(directory),
        None => path.join(directory),
    };
    if !found.iter().any(|file| is_rego(&file.path)) {
        let named = named.display();
        return Err(CliError::text(format!("`{named}` contains no policy")).hint(DIRECTORY_HINT));
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

/// Runs the tests of policies, and the same tests in conftest if it is installed.
pub(super) fn test(settings: &PolicyTestSettings, console: &mut Console) -> Result<Exit, CliError> {
    let mut bundle = Bundle::default();
    for directory in &settings.directories {
        let given = SourceSettings { path: directory.clone(), revision: None };
        add_directory(&mut bundle, &given, "")?;
    }
    let results = policy_process::run_tests(&bundle).map_err(|broken| {
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
    let by_conftest = conftest(&settings.directories, console)?;
    Ok(if failed == 0 && by_conftest { Exit::Done } else { Exit::Failed })
}

/// Runs `conftest verify`. Returns whether it agrees; a missing conftest counts as agreement.
fn conftest(directories: &[PathBuf], console: &mut Console) -> Result<bool, CliError> {
    let mut command = Command::new("conftest");
    command.arg("verify");
    for directory in directories {
        command.arg("--policy").arg(directory);
    }
    // Policy directories also hold their data.
    for directory in directories {
        command.arg("--data").arg(directory);
    }
    match run(command.stdin(Stdio::null()), &policy_process::OTHER_ENGINE_LIMITS) {
        Err(RunError::Start(error)) if error.kind() == ErrorKind::NotFound => {
            console.print(
                "conftest is not installed, so the results were not compared with it. This is \
                 optional.\n",
            )?;
            Ok(true)
        }
        Err(why) => {
            console.print(&format!("conftest {why}\n"))?;
            Ok(false)
        }
        Ok(output) => {
            let report = String::from_utf8_lossy(&output.stdout);
            let verdict = if output.status.success() { "agrees" } else { "DISAGREES" };
            console.print(&format!(
                "conftest {verdict}: {}\n",
                crate::render::escape(report.trim())
            ))?;
            Ok(output.status.success())
        }
    }
}

//! `apply`: execute an approved plan.

use super::apply_session::refuse_unapplyable;
use super::error::CliError;
#[cfg(not(feature = "cluster"))]
use super::hints;
use super::policy::Judge;
use super::progress::ProgressFormat;
use super::settings::{ApplySettings, ApplySubject, PlanView};
use super::world_choice::WorldChoice;
use super::{Console, Exit, apply_embedded, approval, embedded, files, plan, planning, progress};
use crate::model::desired::{AppliedBy, ApplyConditions};
use crate::plan::wire::Capacity;
use crate::plan::{Plan, expiry, verify_approvals};
use crate::render::{self, Verbosity};

/// The only answer that approves.
const YES: &str = "yes";
const QUESTION: &str = "Do you want to apply these changes? Only \"yes\" is accepted.";

pub(super) fn run(settings: &ApplySettings, console: &mut Console) -> Result<Exit, CliError> {
    let end = plan_and_apply(settings, console);
    if let (ProgressFormat::Stream, Err(error)) = (settings.form, &end) {
        // A reader of the stream must not take its end for success. If the line cannot be written,
        // the exit code still reports the failure.
        let _ = console.print(&progress::failure(error, console.now()));
    }
    end
}

fn plan_and_apply(settings: &ApplySettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = match &settings.subject {
        ApplySubject::Saved { plan, .. } => files::saved_plan(plan, console)?,
        ApplySubject::Fresh(planning) => planning::plan(planning, console)?,
    };
    carry_out(&plan, settings, console)
}

/// Shows a plan, has it approved, and applies it.
pub(super) fn carry_out(
    plan: &Plan,
    settings: &ApplySettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let view = match settings.form {
        ProgressFormat::Lines => PlanView::Text(Verbosity::Full),
        ProgressFormat::Stream => PlanView::Stream,
    };
    let world = planned_world(plan, settings)?;
    check_approved(plan, settings)?;
    refuse_unapplyable(plan).map_err(|refusal| with_show_hint(refusal, settings))?;
    let (plan, judge) = &judge_again(plan, settings)?;
    refuse_unapplyable(plan).map_err(|refusal| with_show_hint(refusal, settings))?;
    let has_changes = planning::has_changes(plan);
    // A refused plan is not shown: its reason must not scroll away.
    let mut approvers = Vec::new();
    let guard = &judge.fleet.guard;
    if has_changes {
        check_window(judge, &world, plan, console)?;
    }
    // A controller that waits for CI takes the record of an empty plan for its approved apply.
    let is_recorded = judge.fleet.controller.applied_by == AppliedBy::Ci && plan.applyable;
    if has_changes || (is_recorded && needs_files(guard, settings)) {
        approvers = check_approval(plan, guard, settings, console)?;
    }
    plan::show(plan, view, console)?;
    if has_changes {
        ask_approval(guard, settings, console)?;
    }
    // An embedded world also plays the delivery tools, which may have work even without node changes.
    let has_work = has_changes || (is_recorded && cfg!(feature = "cluster"));
    if !has_work && !matches!(world, WorldChoice::Sim(_)) {
        return Ok(Exit::Done);
    }
    let exit = match world {
        WorldChoice::Sim(directory) => {
            apply_embedded::carry_out(plan, &directory, settings, judge, &approvers, console)
        }
        #[cfg(feature = "cluster")]
        WorldChoice::Live | WorldChoice::File(_) => {
            super::apply_live::carry_out(plan, settings, judge, &approvers, console)
        }
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live | WorldChoice::File(_) => Err(not_built(&world)),
        WorldChoice::Empty => Err(unchangeable_world(&world)),
    }?;
    // The receipt counts what was approved. What the plan did not count must not scroll away.
    if let (ProgressFormat::Lines, Some(line)) = (settings.form, render::first_line(plan)) {
        console.print(&format!("{line}\n"))?;
    }
    Ok(exit)
}

/// Adds the command that shows the refused plan.
fn with_show_hint(refusal: CliError, settings: &ApplySettings) -> CliError {
    match &settings.subject {
        ApplySubject::Saved { plan, .. } => {
            refusal.hint(format!("`fleetwright show {}` shows the plan", plan.display()))
        }
        ApplySubject::Fresh(planning) => refusal
            .hint(format!("`fleetwright plan {}` shows the plan", planning.source.path.display())),
    }
}

/// Judges a saved plan again by the current policies: checks in the file are not part of the
/// approval. Also returns the judge, with the settings that guard it.
fn judge_again(plan: &Plan, settings: &ApplySettings) -> Result<(Plan, Judge), CliError> {
    let mut judge = Judge::for_apply(plan, &settings.guard, &settings.caller)?;
    if !settings.keys.is_empty() {
        let guard = &mut judge.fleet.guard;
        guard.keys = approval::outside_keys(&settings.keys)?;
        // The commit that is applied may have lowered its own number.
        let keys = u32::try_from(guard.keys.len()).unwrap_or(u32::MAX);
        guard.approvals = settings.approvers_min.unwrap_or(keys).max(guard.approvals).max(1);
    }
    let mut judged = plan.clone();
    judge.judge(&mut judged);
    Ok((judged, judge))
}

/// Refuses to start outside the windows of `spec.apply.windows`.
fn check_window(
    judge: &Judge,
    world: &WorldChoice,
    plan: &Plan,
    console: &Console,
) -> Result<(), CliError> {
    let guard = &judge.fleet.guard;
    // An embedded world has a clock of its own.
    let now = match world {
        WorldChoice::Sim(directory) => embedded::now(directory, plan)?,
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::File(_) => console.now(),
    };
    if guard.is_open(now) {
        return Ok(());
    }
    let hint = match guard.next_opening(now) {
        None => "no window opens again; correct spec.apply.windows".to_owned(),
        Some(next) if next < expiry(plan) => {
            format!("the next one opens {next}; apply the plan then")
        }
        Some(next) => {
            format!("the next one opens {next}, after this plan expires; make a new plan then")
        }
    };
    let source = &judge.settings_source;
    Err(CliError::text(format!(
        "it is {now}, outside the windows of spec.apply.windows (fleetwright.yaml of {source})"
    ))
    .kind(Exit::OutsideWindow)
    .hint(hint))
}

/// Returns the world of the plan, which must match the world that the user names.
fn planned_world(plan: &Plan, settings: &ApplySettings) -> Result<WorldChoice, CliError> {
    let recorded = WorldChoice::parse(&plan.capacity.base.world.name)?;
    match &settings.subject {
        ApplySubject::Saved { world: Some(meant), .. } if *meant != recorded => {
            Err(CliError::text(format!("the plan was made over world `{recorded}`, not `{meant}`"))
                .hint("leave --world out, or plan again over the world you mean"))
        }
        ApplySubject::Saved { .. } | ApplySubject::Fresh(_) => Ok(recorded),
    }
}

/// Refuses a plan of another digest or plan ID than was approved.
fn check_approved(plan: &Plan, settings: &ApplySettings) -> Result<(), CliError> {
    let Capacity { digest, plan_id, .. } = &plan.capacity;
    if let Some(approved) = settings.approved_plan.as_ref().filter(|approved| *approved != plan_id)
    {
        return Err(CliError::text(format!(
            "plan {approved} was approved, and this is plan {plan_id}"
        ))
        .kind(Exit::Stale)
        .hint("review the plan and have its ID approved"));
    }
    match &settings.approved_digest {
        Some(approved) if approved != digest => Err(CliError::text(format!(
            "digest {approved} was approved, and the plan has {digest}"
        ))
        .kind(Exit::Stale)
        .hint("review the plan and have its digest approved")),
        Some(_) | None => Ok(()),
    }
}

fn unchangeable_world(world: &WorldChoice) -> CliError {
    CliError::text(format!("world `{world}` cannot be changed"))
        .kind(Exit::NotApproved)
        .hint("plan against a world that can change: --world live, or sim:DIRECTORY")
}

#[cfg(not(feature = "cluster"))]
fn not_built(world: &WorldChoice) -> CliError {
    CliError::text(format!("this build cannot change world `{world}`"))
        .hint(hints::CLUSTER_BUILD)
        .hint("without it: use an embedded cluster, --world sim:DIRECTORY")
}

/// Requires approval by signature or by option, and returns the approvers; or requires a terminal
/// at which an operator can approve.
///
/// A saved plan needs it too: the file alone is no approval.
fn check_approval(
    plan: &Plan,
    guard: &ApplyConditions,
    settings: &ApplySettings,
    console: &Console,
) -> Result<Vec<String>, CliError> {
    if needs_files(guard, settings) {
        let approvals = approval::gather(&settings.approvals)?;
        return verify_approvals(plan, &approvals, &guard.keys, guard.approvals)
            .map_err(approval::refused);
    }
    if is_approved_by_option(settings) || console.is_terminal() {
        return Ok(Vec::new());
    }
    Err(CliError::text("the plan is not approved, and there is no terminal to ask at")
        .kind(Exit::NotApproved)
        .hint(format!("pass --approved-digest {}", plan.capacity.digest))
        .hint("or --approved-plan ID, which covers commit, times and policies as well")
        .hint("or --auto-approve, which approves any plan"))
}

/// Returns whether only approvals in files count. If keys are listed, only their signatures
/// approve.
fn needs_files(guard: &ApplyConditions, settings: &ApplySettings) -> bool {
    !guard.keys.is_empty() || !settings.approvals.is_empty()
}

fn is_approved_by_option(settings: &ApplySettings) -> bool {
    settings.auto_approve || settings.approved_digest.is_some() || settings.approved_plan.is_some()
}

/// Asks the operator at the terminal, unless the plan is approved already.
fn ask_approval(
    guard: &ApplyConditions,
    settings: &ApplySettings,
    console: &mut Console,
) -> Result<(), CliError> {
    if needs_files(guard, settings) || is_approved_by_option(settings) {
        return Ok(());
    }
    if console.ask(QUESTION).is_some_and(|answer| answer == YES) {
        return Ok(());
    }
    Err(CliError::text("not approved; nothing was changed").kind(Exit::NotApproved))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::SourceSettings;
    use crate::cli::tests::{CommandOutput, with_console};
    use crate::plan::wire::{Check, CheckStatus};
    use crate::testing::sample_plan;

    fn settings() -> ApplySettings {
        let subject = ApplySubject::Saved { plan: "p.json".into(), world: None };
        ApplySettings {
            subject,
            auto_approve: false,
            approved_digest: None,
            approved_plan: None,
            approvers_min: None,
            approvals: Vec::new(),
            receipt: None,
            form: ProgressFormat::Lines,
            lock_timeout: std::time::Duration::ZERO,
            guard: crate::cli::settings::GuardChoice::default(),
            keys: Vec::new(),
            caller: SourceSettings { path: ".".into(), revision: None },
        }
    }

    fn run_approve(plan: &Plan, settings: &ApplySettings, input: Option<&str>) -> CommandOutput {
        let guard = ApplyConditions::default();
        with_console(input, |console| {
            let checked = check_approval(plan, &guard, settings, console);
            match checked.and_then(|_| ask_approval(&guard, settings, console)) {
                Ok(()) => Exit::Done,
                Err(error) => {
                    error.write(console);
                    error.kind
                }
            }
        })
    }

    fn run_carry_out(plan: &Plan, settings: &ApplySettings) -> CommandOutput {
        with_console(None, |console| {
            carry_out(plan, settings, console).unwrap_or_else(|error| {
                error.write(console);
                error.kind
            })
        })
    }

    #[test]
    fn only_the_whole_word_yes_approves() {
        let plan = sample_plan::plan().with_identity();
        for (typed, exit) in [
            ("yes\n", Exit::Done),
            ("  yes \n", Exit::Done),
            ("y\n", Exit::NotApproved),
            ("YES\n", Exit::NotApproved),
            ("no\n", Exit::NotApproved),
            ("\n", Exit::NotApproved),
            ("", Exit::NotApproved),
        ] {
            let ran = run_approve(&plan, &settings(), Some(typed));
            assert_eq!(ran.exit, exit, "{typed:?}");
            assert!(ran.err.starts_with(QUESTION) && ran.out.is_empty());
        }
    }

    #[test]
    fn approval_without_terminal_needs_an_option() {
        let plan = sample_plan::plan().with_identity();
        let refused = run_approve(&plan, &settings(), None);
        assert_eq!((refused.exit, refused.exit.code()), (Exit::NotApproved, 5));
        assert!(refused.err.contains(&format!("--approved-digest {}", plan.capacity.digest)));
        let by_option = ApplySettings { auto_approve: true, ..settings() };
        let digest = Some(plan.capacity.digest.clone());
        let by_digest = ApplySettings { approved_digest: digest, ..settings() };
        for settings in [by_option, by_digest] {
            let ran = run_approve(&plan, &settings, None);
            assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""), "no question is asked");
        }
    }

    #[test]
    fn unapplyable_plan_is_refused_before_any_question() {
        let other = Some(format!("sha256:{}", "0".repeat(64)).into());
        let deny = Check { name: "p".into(), status: CheckStatus::Fail, ..Check::default() };
        let auto = ApplySettings { auto_approve: true, ..settings() };
        let plan = || sample_plan::plan().with_identity();
        let elsewhere = ApplySubject::Saved {
            plan: "p.json".into(),
            world: Some(WorldChoice::File("other.json".into())),
        };
        for (plan, settings, exit, says) in [
            (
                plan(),
                ApplySettings { approved_digest: other, ..settings() },
                Exit::Stale,
                "was approved",
            ),
            (
                plan(),
                ApplySettings { subject: elsewhere, ..settings() },
                Exit::Failed,
                "made over world",
            ),
            (Plan { checks: vec![deny], ..plan() }, settings(), Exit::Denied, "denied by policy"),
            (
                Plan { applyable: false, ..plan() },
                settings(),
                Exit::NotApproved,
                "cannot be applied",
            ),
            (Plan { errored: true, ..plan() }, auto, Exit::Failed, "inputs with errors"),
            (
                Plan { errored: true, ..sample_plan::nothing() },
                settings(),
                Exit::Failed,
                "inputs with errors",
            ),
        ] {
            let ran = run_carry_out(&plan, &settings);
            assert_eq!((ran.exit, ran.out.as_str()), (exit, ""), "{}", ran.err);
            assert!(ran.err.contains(says), "{}", ran.err);
        }
    }

    #[test]
    fn missing_guarding_settings_refuse_the_apply() {
        let caller = SourceSettings { path: "no/such/directory".into(), revision: None };
        let settings = ApplySettings { caller, ..settings() };
        let ran = run_carry_out(&sample_plan::plan().with_identity(), &settings);
        assert_eq!(ran.exit, Exit::Failed, "{}", ran.err);
        assert!(ran.err.contains("cannot read the settings that guard the plan"), "{}", ran.err);
    }

    #[test]
    fn denied_plan_without_changes_is_denied() {
        let deny = Check { name: "p".into(), status: CheckStatus::Fail, ..Check::default() };
        let plan = Plan { checks: vec![deny], applyable: false, ..sample_plan::nothing() };
        assert_eq!(run_carry_out(&plan, &settings()).exit, Exit::Denied);
    }

    #[test]
    fn plan_without_changes_needs_no_approval() {
        let tree = tempfile::tempdir().expect("a directory");
        std::fs::write(tree.path().join("a.yaml"), "a: 1").expect("written");
        let source = SourceSettings { path: tree.path().to_owned(), revision: None };
        let mut plan = sample_plan::nothing();
        let base = &mut plan.capacity.base;
        base.world.name = "file:prod.json".into();
        base.path = tree.path().display().to_string();
        base.tree = crate::cli::source_tree::read(&source).expect("read").base.tree;
        (base.commit, base.guard) = (None, None);
        (base.directory, base.repository) = (None, None);
        let ran = run_carry_out(&plan, &ApplySettings { caller: source, ..settings() });
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
        assert!(ran.out.ends_with("matches the configuration.\n"));
    }
}

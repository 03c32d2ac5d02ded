//! `apply`: carry a plan out, once it is approved.

use super::error::CliError;
use super::policy::Judge;
use super::progress::Form;
use super::settings::{ApplySettings, Subject, View};
use super::world::WorldChoice;
use super::{Console, Exit, approval, embedded, files, plan, planning, progress};
use crate::manifest::{GuardSettings, MergedBy};
use crate::plan::{Plan, is_whole, verify_approvals};
use crate::render::{Verbosity, is_errored_by_rules};

/// What a person must answer; anything else is a no.
const YES: &str = "yes";
const QUESTION: &str = "Do you want to apply these changes? Only \"yes\" is accepted.";

pub(super) fn run(settings: &ApplySettings, console: &mut Console) -> Result<Exit, CliError> {
    let end = applied(settings, console);
    if let (Form::Stream, Err(error)) = (settings.form, &end) {
        // Whoever reads the stream alone must not take its end for success.
        // Where it cannot be written, the exit code is still that of the failure.
        let _ = console.print(&progress::failure(error, console.now()));
    }
    end
}

fn applied(settings: &ApplySettings, console: &mut Console) -> Result<Exit, CliError> {
    let plan = match &settings.subject {
        Subject::Saved { plan, .. } => files::saved_plan(plan, console)?,
        Subject::Fresh(planning) => planning::plan(planning, console)?,
    };
    carry_out(&plan, settings, console)
}

/// Shows a plan, has it approved, and carries it out.
pub(super) fn carry_out(
    plan: &Plan,
    settings: &ApplySettings,
    console: &mut Console,
) -> Result<Exit, CliError> {
    let view = match settings.form {
        Form::Lines => View::Text(Verbosity::Full),
        Form::Stream => View::Stream,
    };
    let world = world_of(plan, settings)?;
    hold_to_digest(plan, settings)?;
    if let Err(refusal) = refuse_unapplyable(plan) {
        plan::show(plan, view, console)?;
        return Err(refusal);
    }
    let (plan, guard, merged_by) = &guarded(plan, settings)?;
    plan::show(plan, view, console)?;
    refuse_unapplyable(plan)?;
    if planning::has_changes(plan) {
        hold_to_window(guard, &world, plan, console)?;
        approve(plan, guard, settings, console)?;
    } else if !matches!(world, WorldChoice::Sim(_)) {
        // An embedded world also plays the tools that deliver workloads, which may have to do
        // something where nodes have not.
        told_nothing_to_do(plan, *merged_by, console)?;
        return Ok(Exit::Done);
    }
    match world {
        WorldChoice::Sim(directory) => embedded::carry_out(plan, &directory, settings, console),
        #[cfg(feature = "cluster")]
        WorldChoice::Live | WorldChoice::File(_) => super::live::carry_out(plan, settings, console),
        #[cfg(not(feature = "cluster"))]
        WorldChoice::Live | WorldChoice::File(_) => Err(not_built(&world)),
        WorldChoice::Empty => Err(nothing_to_change(&world)),
    }
}

/// Judges a saved plan again, by the policies that guard now: what a file says of its own checks is
/// not part of what was approved. Returns the settings that guard it, and who applies what is merged, too.
fn guarded(
    plan: &Plan,
    settings: &ApplySettings,
) -> Result<(Plan, GuardSettings, MergedBy), CliError> {
    let judge = Judge::of_apply(plan, &settings.guard)?;
    let mut judged = plan.clone();
    judge.judge(&mut judged);
    let merged_by = judge.fleet.controller.merged_by;
    Ok((judged, judge.fleet.guard, merged_by))
}

/// Tells a loop that waits for CI that there was nothing to apply.
#[cfg(feature = "cluster")]
fn told_nothing_to_do(
    plan: &Plan,
    merged_by: MergedBy,
    console: &mut Console,
) -> Result<(), CliError> {
    match merged_by {
        MergedBy::Ci if plan.applyable => super::live::nothing_to_apply(plan, console),
        MergedBy::Ci | MergedBy::Controller => Ok(()),
    }
}

#[cfg(not(feature = "cluster"))]
#[expect(clippy::unnecessary_wraps, reason = "the other one may fail")]
fn told_nothing_to_do(_: &Plan, _: MergedBy, _: &mut Console) -> Result<(), CliError> {
    Ok(())
}

/// Refuses to begin outside the windows in which changes are allowed.
fn hold_to_window(
    guard: &GuardSettings,
    world: &WorldChoice,
    plan: &Plan,
    console: &Console,
) -> Result<(), CliError> {
    // An embedded world has a time of its own.
    let now = match world {
        WorldChoice::Sim(directory) => embedded::now(directory, plan)?,
        WorldChoice::Empty | WorldChoice::Live | WorldChoice::File(_) => console.now(),
    };
    if guard.is_open(now) {
        return Ok(());
    }
    let next = guard.next_opening(now).map_or_else(|| "never".to_owned(), |at| at.to_string());
    Err(CliError::text(format!("it is {now}, outside the windows of spec.apply.windows"))
        .kind(Exit::OutsideWindow)
        .hint(format!("the next one opens {next}; apply the plan then, while it holds")))
}

/// Returns the world that the plan was made over, which must be the one the caller means.
fn world_of(plan: &Plan, settings: &ApplySettings) -> Result<WorldChoice, CliError> {
    let recorded = WorldChoice::parse(&plan.capacity.base.world.name)?;
    match &settings.subject {
        Subject::Saved { world: Some(meant), .. } if *meant != recorded => {
            Err(CliError::text(format!("the plan was made over world `{recorded}`, not `{meant}`"))
                .hint("leave --world out, or plan again over the world you mean"))
        }
        Subject::Saved { .. } | Subject::Fresh(_) => Ok(recorded),
    }
}

fn hold_to_digest(plan: &Plan, settings: &ApplySettings) -> Result<(), CliError> {
    let digest = &plan.capacity.digest;
    match &settings.approved_digest {
        Some(approved) if approved != digest => Err(CliError::text(format!(
            "digest {approved} was approved, and the plan has {digest}"
        ))
        .kind(Exit::Stale)
        .hint("review the plan and have its digest approved")),
        Some(_) | None => Ok(()),
    }
}

/// Refuses what may not be applied whoever approves it.
pub(super) fn refuse_unapplyable(plan: &Plan) -> Result<(), CliError> {
    if !is_whole(plan) {
        let version = &plan.format_version;
        return Err(CliError::text(format!(
            "the plan has format {version}, whose digest does not hold all that is done"
        ))
        .kind(Exit::UnreadablePlan)
        .hint("plan again, and have the new plan approved"));
    }
    if plan.errored {
        return Err(has_errors(plan));
    }
    if planning::is_denied(plan) {
        return Err(CliError::text("the plan is denied by policy").kind(Exit::Denied));
    }
    if !plan.applyable && planning::has_changes(plan) {
        let world = &plan.capacity.base.world.name;
        return Err(CliError::text(format!("a plan over world `{world}` cannot be applied"))
            .kind(Exit::NotApproved)
            .hint("plan against a world that can change: --world sim:DIRECTORY"));
    }
    Ok(())
}

fn nothing_to_change(world: &WorldChoice) -> CliError {
    CliError::text(format!("there is nothing to change in world `{world}`"))
        .kind(Exit::NotApproved)
        .hint("plan against a world that can change: --world live, or sim:DIRECTORY")
}

#[cfg(not(feature = "cluster"))]
fn not_built(world: &WorldChoice) -> CliError {
    CliError::text(format!("this program was built without what applying to world `{world}` needs"))
        .hint(
            "build it with the feature `cluster`, or use an embedded world: --world sim:DIRECTORY",
        )
}

fn has_errors(plan: &Plan) -> CliError {
    if is_errored_by_rules(plan) {
        return CliError::text(
            "the plan breaks rules that every plan must keep, so it cannot be applied",
        )
        .hint("this is a defect of fleetwright; `fleetwright show` lists the rules");
    }
    CliError::text("the plan was made from inputs with errors, so it cannot be applied")
        .hint("`fleetwright validate` lists them")
}

/// Has the plan approved: by its digest, by the option, or by somebody at the terminal.
fn approve(
    plan: &Plan,
    guard: &GuardSettings,
    settings: &ApplySettings,
    console: &mut Console,
) -> Result<(), CliError> {
    // Where keys are listed, nothing but their signatures approves.
    if !guard.keys.is_empty() || !settings.approvals.is_empty() {
        let approvals = approval::gather(&settings.approvals)?;
        return verify_approvals(plan, &approvals, &guard.keys, guard.approvals)
            .map_err(approval::refused);
    }
    if settings.auto_approve || settings.approved_digest.is_some() {
        return Ok(());
    }
    match console.ask(QUESTION) {
        Some(answer) if answer == YES => Ok(()),
        Some(_) => Err(CliError::text("not approved; nothing was changed").kind(Exit::NotApproved)),
        None => Err(CliError::text("nobody approved the plan, and there is no terminal to ask at")
            .kind(Exit::NotApproved)
            .hint(format!("pass --approved-digest {}", plan.capacity.digest))
            .hint("or --auto-approve, which approves whatever the plan holds")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::settings::SourceSettings;
    use crate::cli::tests::{Ran, sealed, with_console};
    use crate::plan::wire::Check;
    use crate::render::fixture;

    fn settings() -> ApplySettings {
        let subject = Subject::Saved { plan: "p.json".into(), world: None };
        ApplySettings {
            subject,
            auto_approve: false,
            approved_digest: None,
            approvals: Vec::new(),
            receipt: None,
            form: Form::Lines,
            lock_timeout: std::time::Duration::ZERO,
            guard: crate::cli::settings::GuardChoice::default(),
        }
    }

    fn approved(plan: &Plan, settings: &ApplySettings, input: Option<&str>) -> Ran {
        with_console(input, |console| {
            match approve(plan, &GuardSettings::default(), settings, console) {
                Ok(()) => Exit::Done,
                Err(error) => {
                    error.write(console);
                    error.kind
                }
            }
        })
    }

    fn carried_out(plan: &Plan, settings: &ApplySettings) -> Ran {
        with_console(None, |console| {
            carry_out(plan, settings, console).unwrap_or_else(|error| {
                error.write(console);
                error.kind
            })
        })
    }

    #[test]
    fn only_the_whole_word_yes_approves() {
        let plan = sealed(fixture::plan());
        for (typed, exit) in [
            ("yes\n", Exit::Done),
            ("  yes \n", Exit::Done),
            ("y\n", Exit::NotApproved),
            ("YES\n", Exit::NotApproved),
            ("no\n", Exit::NotApproved),
            ("\n", Exit::NotApproved),
            ("", Exit::NotApproved),
        ] {
            let ran = approved(&plan, &settings(), Some(typed));
            assert_eq!(ran.exit, exit, "{typed:?}");
            assert!(ran.err.starts_with(QUESTION) && ran.out.is_empty());
        }
    }

    #[test]
    fn without_a_terminal_approval_comes_from_the_command_line_or_not_at_all() {
        let plan = sealed(fixture::plan());
        let refused = approved(&plan, &settings(), None);
        assert_eq!((refused.exit, refused.exit.code()), (Exit::NotApproved, 5));
        assert!(refused.err.contains(&format!("--approved-digest {}", plan.capacity.digest)));
        let by_option = ApplySettings { auto_approve: true, ..settings() };
        let digest = Some(plan.capacity.digest.clone());
        let by_digest = ApplySettings { approved_digest: digest, ..settings() };
        for settings in [by_option, by_digest] {
            let ran = approved(&plan, &settings, None);
            assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""), "nothing is asked");
        }
    }

    #[test]
    fn what_may_not_be_applied_is_refused_before_anything_is_asked_or_done() {
        let other = Some(format!("sha256:{}", "0".repeat(64)).into());
        let deny = Check { name: "p".into(), status: "fail".into(), ..Check::default() };
        let auto = ApplySettings { auto_approve: true, ..settings() };
        let plan = || sealed(fixture::plan());
        let elsewhere = Subject::Saved {
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
                Plan { errored: true, ..fixture::nothing() },
                settings(),
                Exit::Failed,
                "inputs with errors",
            ),
        ] {
            let ran = carried_out(&plan, &settings);
            assert_eq!(ran.exit, exit, "{}", ran.err);
            assert!(ran.err.contains(says), "{}", ran.err);
        }
    }

    #[test]
    fn what_guards_must_be_there_or_nothing_is_applied() {
        // The files and the commit of the fixture are nowhere.
        let ran = carried_out(&sealed(fixture::plan()), &settings());
        assert_eq!(ran.exit, Exit::Failed, "{}", ran.err);
        assert!(ran.err.contains("cannot read what guards the plan"), "{}", ran.err);
    }

    #[test]
    fn a_denied_plan_is_denied_even_where_it_changes_nothing() {
        let deny = Check { name: "p".into(), status: "fail".into(), ..Check::default() };
        let plan = Plan { checks: vec![deny], applyable: false, ..fixture::nothing() };
        assert_eq!(carried_out(&plan, &settings()).exit, Exit::Denied);
    }

    #[test]
    fn where_nothing_changes_nothing_is_asked() {
        let tree = tempfile::tempdir().expect("a directory");
        std::fs::write(tree.path().join("a.yaml"), "a: 1").expect("written");
        let source = SourceSettings { path: tree.path().to_owned(), revision: None };
        let mut plan = fixture::nothing();
        let base = &mut plan.capacity.base;
        base.world.name = "file:prod.json".into();
        base.path = tree.path().display().to_string();
        base.tree = planning::read(&source).expect("read").base.tree;
        (base.commit, base.guard) = (None, None);
        let ran = carried_out(&plan, &settings());
        assert_eq!((ran.exit, ran.err.as_str()), (Exit::Done, ""));
        assert!(ran.out.ends_with("matches the configuration.\n"));
    }
}

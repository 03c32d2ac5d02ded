pub(super) mod manifests;
mod printed_urls;
mod replacement_batches;
mod unreadable_state;

use std::cell::RefCell;
use std::io::{self, Write};
use std::path::Path;
use std::rc::Rc;

use clap::Parser;

use super::output::DocumentFormat;
use super::planning::Planned;
use super::settings::{
    ApplySubject, Format, PlanSettings, PlanView, PlanningSettings, SourceSettings,
};
use super::world_choice::WorldChoice;
use super::*;
use crate::demand::DemandMode;
use crate::model::desired::{Problem, Severity};
use crate::plan::wire::{Check, CheckStatus, FORMAT_VERSION};
use crate::plan::{Plan, RowSelection};
use crate::planner::Scope;
use crate::render::{RepositoryCounts, RepositoryFacts, Verbosity};
use crate::telemetry::LogLevel;
use crate::testing::sample_plan;

/// Captured output of a console.
#[derive(Clone, Default)]
pub(super) struct Sink(Rc<RefCell<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.borrow_mut().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn text(&self) -> String {
        String::from_utf8(self.0.borrow().clone()).expect("text")
    }
}

/// A stdout that fails.
struct FailingWriter(io::ErrorKind);

impl Write for FailingWriter {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(self.0.into())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The output and the exit of a command.
pub(super) struct CommandOutput {
    pub(super) exit: Exit,
    pub(super) out: String,
    pub(super) err: String,
}

/// Runs `command` with a console in memory; `input` is typed at the terminal.
pub(super) fn with_console(
    input: Option<&str>,
    command: impl FnOnce(&mut Console) -> Exit,
) -> CommandOutput {
    let (out, err) = (Sink::default(), Sink::default());
    let input = input.map(|text| -> Box<dyn io::BufRead> {
        Box::new(io::Cursor::new(text.to_owned().into_bytes()))
    });
    let now = "2026-09-01T10:02:00.7Z".parse().expect("a time");
    let mut console =
        Console::from_streams(Box::new(out.clone()), Box::new(err.clone()), input, now);
    let exit = command(&mut console);
    CommandOutput { exit, out: out.text(), err: err.text() }
}

pub(super) fn run_command(arguments: &[&str]) -> CommandOutput {
    with_console(None, |console| run(words(arguments), console))
}

/// Returns a directory with a copy of the example `quickstart`.
pub(super) fn copied_quickstart() -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("a directory");
    let from = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart");
    let copied = std::process::Command::new("cp").arg("-r").arg(from).arg(tree.path()).status();
    assert!(copied.expect("cp runs").success());
    tree
}

fn words(arguments: &[&str]) -> Vec<OsString> {
    ["fleetwright"].iter().chain(arguments).map(OsString::from).collect()
}

fn parse_settings(arguments: &[&str]) -> Result<(GlobalSettings, CommandSettings), CliError> {
    let typed = CliArgs::try_parse_from(words(arguments)).expect("well-formed arguments");
    settings::resolve(typed)
}

/// Returns the text of an error as it is written to stderr.
fn error_text(error: &CliError) -> String {
    with_console(None, |console| {
        error.write(console);
        error.kind
    })
    .err
}

fn save(directory: &Path, plan: &Plan) -> String {
    let path = directory.join("plan.json");
    std::fs::write(&path, plan.to_json()).expect("written");
    path.display().to_string()
}

fn planning(path: &str) -> PlanningSettings {
    PlanningSettings {
        source: SourceSettings { path: path.into(), revision: None },
        world: None,
        at: None,
        demand: None,
        steer: false,
        scope: Scope::default(),
        compare: None,
        guard: super::settings::GuardChoice::default(),
    }
}

#[test]
fn argument_definition_is_valid() {
    help::command().debug_assert();
}

#[test]
fn usage_errors_end_with_1_because_2_means_changes() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["plan", "--world"],
        &["plan", "--demand", "most"],
        &["plan", "--concise", "--summary"],
        &["plan", "-v", "-q"],
        &["show"],
        &["catalog", "list", "--limit", "few"],
        &["plan", "--format", "pdf"],
        &["plan", "--format", "html", "--summary"],
        &["plan", "--json", "--format", "text"],
        &["plan", "--changes-only"],
        &["plan", "--json", "--out", "p", "--changes-only"],
        &["show", "p", "-o", "html", "--changes-only"],
        &["plan", "--format", "json", "--concise"],
        &["plan", "--at", "tomorrow"],
        &["plan", "--world", "sim:"],
        &["plan", "--target", "web"],
        &["apply", ".", "--approved-digest", "abc"],
        &["catalog", "list", "-l", "a b c"],
    ] {
        let CommandOutput { exit, out, err } = run_command(arguments);
        assert_eq!((exit, exit.code(), out.as_str()), (Exit::Failed, 1, ""), "{arguments:?}");
        assert!(!err.is_empty(), "{arguments:?}");
    }
}

#[test]
fn help_and_version_are_results() {
    let version = run_command(&["--version"]);
    assert_eq!(version.exit, Exit::Done);
    assert_eq!(version.out, format!("fleetwright {}\n", env!("CARGO_PKG_VERSION")));
    let help = run_command(&["help"]);
    assert_eq!((help.exit, help.err.as_str()), (Exit::Done, ""));
    let of_plan = run_command(&["plan", "--help"]).out;
    for option in ["--world", "--ref", "--at", "--demand", "--out", "--target", "--exclude"] {
        assert!(of_plan.contains(option), "{option}");
    }
}

#[cfg(feature = "live")]
#[test]
fn commands_not_built_in_are_not_listed() {
    let mut names: Vec<String> =
        help::command().get_subcommands().map(|c| c.get_name().to_owned()).collect();
    names.sort();
    let built = [
        "adopt",
        "apply",
        "approve",
        "bootstrap",
        "catalog",
        "comment",
        "completions",
        "diff",
        "doctor",
        "drift",
        "explain",
        "forecast",
        "init",
        "man",
        "observe",
        "plan",
        "policy",
        "preflight",
        "run",
        "sandbox",
        "show",
        "sources",
        "top",
        "validate",
        "version",
    ];
    let is_built = |name: &&str| match *name {
        "preflight" => cfg!(feature = "cluster"),
        "sandbox" => cfg!(feature = "sandbox"),
        "sources" => cfg!(feature = "live"),
        _ => true,
    };
    assert_eq!(names, built.into_iter().filter(is_built).collect::<Vec<_>>());
}

const EVERY_ARGUMENT: [&str; 23] = [
    "plan",
    "k8s",
    "--ref",
    "main",
    "--world",
    "sim:w",
    "--at",
    "2026-09-01T12:00:00+02:00",
    "--demand",
    "ceiling",
    "--steer",
    "--target",
    "ec2_instance.web",
    "--target",
    "ec2_instance.db[0]",
    "--exclude",
    "autoscaling_group.old",
    "--replace",
    "ec2_instance.web[\"1\"]",
    "--out",
    "p.json",
    "--summary",
    "--detailed-exitcode",
];

#[test]
fn plan_arguments_become_settings() {
    let of = |arguments: &[&str]| match parse_settings(arguments).expect("valid") {
        (_, CommandSettings::Plan(settings)) => settings,
        (_, task) => panic!("{task:?}"),
    };
    let text = |verbosity| PlanView::Text(verbosity);
    let plain = PlanSettings {
        planning: planning("."),
        out: None,
        saved_rows: RowSelection::All,
        view: text(Verbosity::Full),
        detailed_exitcode: false,
        #[cfg(feature = "page")]
        serve: None,
    };
    assert_eq!(of(&["plan"]), plain);
    let everything = of(&EVERY_ARGUMENT);
    let expected = PlanSettings {
        planning: PlanningSettings {
            source: SourceSettings { path: "k8s".into(), revision: Some("main".into()) },
            world: Some(WorldChoice::Sim("w".into())),
            at: Some("2026-09-01T10:00:00Z".parse().expect("a time")),
            demand: Some(DemandMode::Ceiling),
            steer: true,
            scope: Scope {
                target_addresses: vec!["ec2_instance.web".into(), "ec2_instance.db[\"0\"]".into()],
                excluded_addresses: vec!["autoscaling_group.old".into()],
                replaced_addresses: vec!["ec2_instance.web[\"1\"]".into()],
                ..Scope::default()
            },
            ..planning(".")
        },
        out: Some("p.json".into()),
        saved_rows: RowSelection::All,
        view: text(Verbosity::Summary),
        detailed_exitcode: true,
        #[cfg(feature = "page")]
        serve: None,
    };
    assert_eq!(everything, expected);
    #[cfg(feature = "page")]
    for (typed, address) in
        [("--serve", Some("127.0.0.1:8080")), ("--serve=127.0.0.1:0", Some("127.0.0.1:0"))]
    {
        let address = address.map(|text| text.parse().expect("an address"));
        assert_eq!(of(&["plan", typed, "--no-color", "shop"]).serve, address, "{typed}");
    }
    let wide = of(&["plan", "-o", "wide", "--concise"]).view;
    assert_eq!(wide, PlanView::Wide(Verbosity::Concise));
    let all = PlanView::Document(DocumentFormat::Json, RowSelection::All);
    assert_eq!(of(&["plan", "--format", "json"]).view, all);
    let changes = of(&["plan", "--out", "p", "-o", "yaml", "--changes-only"]);
    assert_eq!(changes.saved_rows, RowSelection::ChangesOnly);
    let yaml = PlanView::Document(DocumentFormat::Yaml, RowSelection::ChangesOnly);
    assert_eq!(changes.view, yaml);
    assert_eq!(of(&["plan", "--concise"]).view, text(Verbosity::Concise));
}

#[test]
fn global_options_work_before_and_after_the_command() {
    for (arguments, loudness, no_color) in [
        (&["plan"][..], LogLevel::Normal, false),
        (&["-v", "plan"], LogLevel::Verbose, false),
        (&["plan", "-vv", "--no-color"], LogLevel::Debug, true),
        (&["plan", "-vvvv"], LogLevel::Debug, false),
        (&["--no-color", "plan", "--quiet"], LogLevel::Quiet, true),
    ] {
        let (common, _) = parse_settings(arguments).expect("valid");
        assert_eq!(common, GlobalSettings { loudness, no_color }, "{arguments:?}");
    }
}

#[test]
fn an_address_is_a_row_or_a_pool() {
    for (typed, meant) in [
        ("ec2_instance.web", Some("ec2_instance.web")),
        ("ec2_instance.web[\"0\"]", Some("ec2_instance.web[\"0\"]")),
        ("ec2_instance.web[0]", Some("ec2_instance.web[\"0\"]")),
        ("ec2_instance.a.b[\"x-1\"]", Some("ec2_instance.a.b[\"x-1\"]")),
        ("kubernetes_node.ip-10-0-0-1", Some("kubernetes_node.ip-10-0-0-1")),
        ("web", None),
        ("aws_instance.web", None),
        ("ec2_instance.", None),
        ("ec2_instance.web[]", None),
        ("ec2_instance.web[\"0\"", None),
        ("ec2_instance.web]", None),
        ("ec2_instance.[\"0\"]", None),
    ] {
        let found = parse_settings(&["plan", "--target", typed]).ok().map(|(_, task)| {
            let CommandSettings::Plan(settings) = task else { panic!("{task:?}") };
            settings.planning.scope.target_addresses[0].clone()
        });
        assert_eq!(found.as_deref(), meant, "{typed}");
    }
}

#[test]
fn recorded_world_parses_to_the_same_world() {
    for (typed, recorded) in [
        ("empty", "empty"),
        ("live", "live"),
        ("sim:a/b", "sim:a/b"),
        ("prod.json", "file:prod.json"),
        ("file:empty", "file:empty"),
        ("C:odd", "file:C:odd"),
    ] {
        let world = WorldChoice::parse(typed).expect("a world");
        assert_eq!(world.to_string(), recorded);
        assert_eq!(WorldChoice::parse(recorded).expect("a world"), world);
    }
    assert!(WorldChoice::parse("").is_err() && WorldChoice::parse("file:").is_err());
}

#[test]
fn apply_accepts_a_directory_or_a_saved_plan() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().to_str().expect("UTF-8");
    let subject = |arguments: &[&str]| match parse_settings(arguments) {
        Ok((_, CommandSettings::Apply(settings))) => Ok(settings.subject),
        Ok((_, task)) => panic!("{task:?}"),
        Err(error) => Err(error_text(&error)),
    };
    let fresh = PlanningSettings { demand: Some(DemandMode::Floor), ..planning(path) };
    assert_eq!(
        subject(&["apply", path, "--demand", "floor"]),
        Ok(ApplySubject::Fresh(Box::new(fresh)))
    );
    let world = Some(WorldChoice::Sim("w".into()));
    let saved = ApplySubject::Saved { plan: "p.json".into(), world };
    assert_eq!(subject(&["apply", "p.json", "--world", "sim:w"]), Ok(saved));
    for option in ["--ref", "--at", "--demand", "--target", "--exclude", "--replace"] {
        let value = match option {
            "--at" => "2026-09-01T10:00:00Z",
            "--demand" => "live",
            _ => "ec2_instance.web",
        };
        let error = subject(&["apply", "p.json", option, value]).expect_err(option);
        assert!(error.starts_with(&format!("error: {option} has no effect on a saved plan")));
    }
    let explain = parse_settings(&["explain", "x", "--plan", "p.json", "--world", "empty"]);
    assert!(error_text(&explain.expect_err("no effect")).contains("--world has no effect"));
}

#[test]
fn show_repeats_text_and_json_of_a_saved_plan() {
    let directory = tempfile::tempdir().expect("a directory");
    let plan = sample_plan::plan().with_identity();
    let path = save(directory.path(), &plan);
    assert_eq!(run_command(&["show", &path, "--format", "json"]).out, plan.to_output_json());
    let text = run_command(&["show", &path]);
    assert_eq!(text.exit, Exit::Done);
    assert!(text.out.contains("\nPlan (incomplete): 4 to add, 1 to change, 4 to destroy. "));
    assert!(run_command(&["show", &path, "--summary"]).out.lines().count() < 16);
    let piped = with_console(Some(&plan.to_json()), |console| run(words(&["show", "-"]), console));
    assert_eq!(piped.out, text.out);
}

#[test]
fn unreadable_plan_exits_with_9_and_a_reason() {
    let directory = tempfile::tempdir().expect("a directory");
    let mut plan = sample_plan::plan().with_identity();
    let good = plan.to_json();
    plan.resource_changes.remove(0);
    for (content, reason) in [
        (plan.to_json(), "was altered"),
        ("{}".to_owned(), "no `format_version`"),
        ("not json".to_owned(), "is not JSON"),
        (good.replace(&format!("\"{FORMAT_VERSION}\""), "\"2.0\""), "has format 2.0"),
    ] {
        let path = directory.path().join("p.json").display().to_string();
        std::fs::write(&path, content).expect("written");
        for command in [&["show", &path][..], &["explain", "x", "--plan", &path], &["apply", &path]]
        {
            let CommandOutput { exit, out, err } = run_command(command);
            assert_eq!((exit, exit.code(), out.as_str()), (Exit::UnreadablePlan, 9, ""));
            assert!(err.contains(reason) && err.contains("\n  hint:  "), "{err}");
        }
    }
    let missing = run_command(&["show", "no/such/plan.json"]);
    assert_eq!(missing.exit, Exit::UnreadablePlan);
    assert!(missing.err.starts_with("error: cannot read `no/such/plan.json`\n  cause: "));
}

#[test]
fn exit_order_is_errors_policies_unread_changes() {
    let deny = || Check { name: "p".into(), status: CheckStatus::Fail, ..Check::default() };
    let settings = |detailed_exitcode| PlanSettings {
        planning: planning("."),
        out: None,
        saved_rows: RowSelection::All,
        view: PlanView::Text(Verbosity::Summary),
        detailed_exitcode,
        #[cfg(feature = "page")]
        serve: None,
    };
    let mut complete = sample_plan::plan();
    complete.capacity.unresolved.clear();
    for (plan, plain, detailed) in [
        (sample_plan::nothing(), 0, 0),
        (sample_plan::plan(), 0, 12),
        (complete, 0, 2),
        (Plan { checks: vec![deny()], ..sample_plan::plan() }, 6, 6),
        (Plan { checks: vec![deny()], errored: true, ..sample_plan::plan() }, 1, 1),
        (Plan { errored: true, ..sample_plan::nothing() }, 1, 1),
    ] {
        let planned = Planned { plan, facts: RepositoryFacts::default() };
        let code = |detailed| {
            with_console(None, |console| {
                super::plan::finish(&planned, &settings(detailed), console).expect("shown")
            })
            .exit
            .code()
        };
        assert_eq!((code(false), code(true)), (plain, detailed));
    }
}

#[test]
fn closed_stdout_keeps_the_file_and_the_exit_code() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("plan.json");
    let settings = PlanSettings {
        planning: planning("."),
        out: Some(out.clone()),
        saved_rows: RowSelection::All,
        view: PlanView::Document(DocumentFormat::Json, RowSelection::All),
        detailed_exitcode: true,
        #[cfg(feature = "page")]
        serve: None,
    };
    let planned = Planned { plan: sample_plan::plan(), facts: RepositoryFacts::default() };
    let now = "2026-09-01T10:02:00Z".parse().expect("a time");
    let end = |kind: io::ErrorKind| {
        let err = Sink::default();
        let mut console =
            Console::from_streams(Box::new(FailingWriter(kind)), Box::new(err.clone()), None, now);
        (super::plan::finish(&planned, &settings, &mut console).map_err(|e| e.kind), err.text())
    };
    let (gone, said) = end(io::ErrorKind::BrokenPipe);
    assert_eq!(gone, Ok(Exit::Incomplete));
    assert!(said.contains("fleetwright apply"));
    assert_eq!(std::fs::read_to_string(&out).expect("saved"), planned.plan.to_json());
    assert_eq!(end(io::ErrorKind::StorageFull).0, Err(Exit::Failed), "other failures are errors");
}

#[test]
fn explain_reads_a_saved_plan_and_suggests_similar_names() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = save(directory.path(), &sample_plan::plan().with_identity());
    let found = run_command(&["explain", "web/api", "--plan", &path]);
    assert!(found.out.starts_with("web/Deployment/api  clusters/prod/apps.yaml:3\n"));
    let json = run_command(&["explain", "i-web1", "--plan", &path, "--format", "json"]).out;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["row"]["address"], "ec2_instance.web[\"1\"]");
    let missing = run_command(&["explain", "web/apu", "--plan", &path]);
    assert_eq!(missing.exit, Exit::Failed);
    assert!(missing.err.contains("  hint:  did you mean web/api?\n"), "{}", missing.err);
    let unread = "  hint:  the planned repository was not read: ";
    assert!(missing.err.contains(unread), "{}", missing.err);
}

#[test]
fn only_error_problems_exit_with_1() {
    let problem = |severity| {
        Problem::new(severity, crate::model::ids::Origin::new("a.yaml", 1), "", "is wrong")
    };
    for (problems, code) in [
        (vec![], 0),
        (vec![problem(Severity::Warning)], 0),
        (vec![problem(Severity::Warning), problem(Severity::Error)], 1),
    ] {
        for format in [Format::Text, Format::Document(DocumentFormat::Json)] {
            let ran = with_console(None, |console| {
                validate::finish(&problems, &RepositoryCounts::default(), format, console)
                    .expect("shown")
            });
            assert_eq!(ran.exit.code(), code);
            assert!(ran.err.is_empty() && !ran.out.is_empty());
        }
    }
}

#[test]
fn error_text_has_causes_and_hints_and_is_escaped() {
    let error = CliError::text("memory request `2G1`\u{1b}[2J is not a quantity")
        .context("cannot read workload `web/api\nerror: forged`".into())
        .hint("write `2Gi`");
    assert_eq!(
        error_text(&error),
        "error: cannot read workload `web/api\\nerror: forged`\n  cause: memory request \
         `2G1`\\u{1b}[2J is not a quantity\n  hint:  write `2Gi`\n"
    );
}

#[test]
fn unreadable_tree_is_an_error_with_a_hint() {
    let empty = tempfile::tempdir().expect("a directory");
    let empty = empty.path().to_str().expect("UTF-8");
    for command in ["plan", "validate", "observe"] {
        for (path, reason) in [("no/such/dir", "no such directory"), (empty, "is empty")] {
            let CommandOutput { exit, out, err } = run_command(&[command, path]);
            assert_eq!((exit, out.as_str()), (Exit::Failed, ""));
            assert!(err.contains(reason) && err.contains("hint:"), "{err}");
        }
    }
}

#[test]
fn every_shell_has_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let CommandOutput { exit, out, .. } = run_command(&["completions", shell]);
        assert_eq!(exit, Exit::Done);
        assert!(out.contains("detailed-exitcode"), "{shell}");
    }
}

#[test]
fn errors_run_no_command_of_ci_systems() {
    let CommandOutput { err, .. } = run_command(&["plan", "##vso[task.x]y ##[set-env name=A]b"]);
    assert!(err.contains("vso[task.x]y") && !err.contains("##"), "{err}");
}

#[test]
fn exit_codes_match_the_documentation() {
    let codes: Vec<u8> = [
        Exit::Done,
        Exit::Failed,
        Exit::Changes,
        Exit::Stale,
        Exit::Locked,
        Exit::NotApproved,
        Exit::Denied,
        Exit::Partly,
        Exit::OutsideWindow,
        Exit::UnreadablePlan,
        Exit::OtherCluster,
        Exit::Expired,
        Exit::Interrupted,
    ]
    .map(Exit::code)
    .to_vec();
    assert_eq!(codes, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 130]);
}

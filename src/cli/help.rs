//! Help beyond the options: groups of commands, examples and exit codes.

use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Command, CommandFactory};

use super::args::CliArgs;
use super::exit::Exit;

/// The commands in their groups.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Plan and apply", &["plan", "show", "diff", "approve", "apply", "comment"]),
    ("Inspect", &["explain", "drift", "forecast", "observe", "top", "validate", "catalog"]),
    ("Run", &["run", "sandbox"]),
    (
        "Set up",
        &[
            "init",
            "bootstrap",
            "sources",
            "doctor",
            "preflight",
            "adopt",
            "policy",
            "completions",
            "man",
            "version",
            "help",
        ],
    ),
];

const EXAMPLES: &str = "\
Examples:
  fleetwright init                                  write the settings of this directory
  fleetwright plan                                  the nodes that these workloads need
  fleetwright plan --world live --out p.json        what to change in the cluster, saved
  fleetwright apply p.json                          apply exactly that plan
  fleetwright explain web/api --plan p.json         why these pods are where they are

Exit codes: 0 done, 1 error. `--help` of most commands lists their codes.";

/// Exit codes by command. Those of `apply` are [`apply_exits`]. The help of `run`, `doctor` and
/// `preflight` has words of its own.
const EXITS: [(&str, &[Exit]); 12] = [
    (
        "adopt",
        &[
            Exit::Done,
            Exit::Failed,
            Exit::Stale,
            Exit::Locked,
            Exit::NotApproved,
            Exit::Partly,
            Exit::OtherCluster,
        ],
    ),
    (
        "plan",
        &[
            Exit::Done,
            Exit::Failed,
            Exit::Changes,
            Exit::Denied,
            Exit::OtherCluster,
            Exit::Incomplete,
        ],
    ),
    ("show", &[Exit::Done, Exit::Failed, Exit::UnreadablePlan]),
    ("diff", &[Exit::Done, Exit::Failed, Exit::Changes, Exit::UnreadablePlan]),
    ("drift", &[Exit::Done, Exit::Failed, Exit::Changes, Exit::NotApproved, Exit::OtherCluster]),
    ("approve", &[Exit::Done, Exit::Failed, Exit::UnreadablePlan]),
    ("comment", &[Exit::Done, Exit::Failed, Exit::UnreadablePlan]),
    ("explain", &[Exit::Done, Exit::Failed, Exit::UnreadablePlan, Exit::OtherCluster]),
    ("forecast", &[Exit::Done, Exit::Failed, Exit::OtherCluster]),
    ("observe", &[Exit::Done, Exit::Failed, Exit::NotApproved, Exit::OtherCluster]),
    ("top", &[Exit::Done, Exit::Failed, Exit::OtherCluster, Exit::Interrupted]),
    ("validate", &[Exit::Done, Exit::Failed]),
];

/// Returns the exit codes of `apply`: all but those that need `--detailed-exitcode`.
fn apply_exits() -> Vec<Exit> {
    let is_of_plan = |exit: &Exit| matches!(exit, Exit::Changes | Exit::Incomplete);
    Exit::ALL.iter().copied().filter(|exit| !is_of_plan(exit)).collect()
}

/// Returns the definition of the command line with its complete help.
pub(super) fn command() -> Command {
    let command = CliArgs::command();
    let template = template(&command);
    let mut command = command
        .help_template(template)
        .after_help(EXAMPLES)
        .mut_subcommand("apply", |apply| with_exits(apply, &apply_exits()));
    for (name, exits) in EXITS {
        // Some commands are absent from smaller builds.
        if command.find_subcommand(name).is_some() {
            command = command.mut_subcommand(name, |found| with_exits(found, exits));
        }
    }
    command
}

/// Returns the template of the help of the program, with the commands in groups. Clap itself can
/// only list them in one.
fn template(command: &Command) -> StyledStr {
    let styles = command.get_styles();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let mut text = StyledStr::new();
    text.push_str("{about-with-newline}\n{usage-heading} {usage}\n");
    for (heading, names) in GROUPS {
        let _ = write!(text, "\n{header}{heading}:{header:#}\n");
        for name in names {
            let about = match (command.find_subcommand(name), *name) {
                (Some(found), _) => found.get_about().map(ToString::to_string),
                (None, "help") => Some("Print the help of a command".to_owned()),
                (None, _) => None,
            };
            if let Some(about) = about {
                let _ = writeln!(text, "  {literal}{name:<13}{literal:#}{about}");
            }
        }
    }
    let _ = write!(text, "\n{header}Global options:{header:#}\n{{options}}{{after-help}}");
    text
}

/// Adds exit codes to the help of a command: a table to `--help`, one line to `-h`.
fn with_exits(command: Command, exits: &[Exit]) -> Command {
    let short = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let long = command.get_after_long_help().map_or_else(|| short.clone(), ToString::to_string);
    let below = |text: String| if text.is_empty() { text } else { text + "\n\n" };
    let mut table = below(long);
    table.push_str("Exit codes:");
    for exit in exits {
        let _ = write!(table, "\n  {:>3}  {}", exit.code(), exit.meaning());
    }
    let labels: Vec<String> =
        exits.iter().map(|exit| format!("{} {}", exit.code(), exit.label())).collect();
    let line = format!("{}Exit codes: {}", below(short), labels.join(", "));
    command.after_help(line).after_long_help(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::run_command;

    #[test]
    fn each_command_is_in_one_group() {
        let grouped: Vec<&str> =
            GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        for command in command().get_subcommands() {
            let name = command.get_name();
            assert_eq!(grouped.iter().filter(|n| **n == name).count(), 1, "{name}");
        }
    }

    #[test]
    fn help_of_apply_lists_no_exit_code_of_plan_alone() {
        let help = run_command(&["apply", "--help"]).out;
        let (_, listed) = help.split_once("Exit codes:").expect("exit codes");
        let codes: Vec<&str> =
            listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
        assert!(codes.contains(&"7") && codes.contains(&"10"), "{listed}");
        assert!(!codes.contains(&"2") && !codes.contains(&"12"), "{listed}");
    }

    #[test]
    fn help_lists_the_exit_codes_of_the_command_reference() {
        let page = include_str!("../../docs/src/reference/cli.md");
        for (name, exits) in EXITS {
            if command().find_subcommand(name).is_none() {
                continue;
            }
            let codes: Vec<String> = exits.iter().map(|exit| exit.code().to_string()).collect();
            let heading = format!("\n## {name}\n");
            let (_, section) = page.split_once(&*heading).expect("a section of the command");
            let stated = section.lines().find_map(|line| line.strip_prefix("Exit codes: "));
            assert_eq!(stated, Some(&*format!("{}.", codes.join(", "))), "{name}");
            for flag in ["-h", "--help"] {
                let help = run_command(&[name, flag]).out;
                assert_eq!(help.matches("Exit codes:").count(), 1, "{name} {flag}: {help}");
            }
        }
        let help = run_command(&["forecast", "--help"]).out;
        assert!(help.contains("Examples:\n") && help.contains("\n   10  "), "{help}");
    }

    #[test]
    fn short_help_of_plan_fits_a_screen() {
        let help = run_command(&["plan", "-h"]).out;
        assert!(help.lines().count() <= 40, "{}:\n{help}", help.lines().count());
        let headings = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' '));
        let headings: Vec<&str> = headings.collect();
        let expected = ["Arguments:", "Plan:", "Source:", "Safety:", "Output:", "Global options:"];
        assert_eq!(headings, expected, "{help}");
    }

    #[test]
    fn sentences_of_help_are_short() {
        fn check(command: &Command) {
            let texts = command.get_arguments().filter_map(|arg| {
                arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string)
            });
            for text in texts.chain(command.get_about().map(ToString::to_string)) {
                for sentence in text.split("\n\n").flat_map(|part| part.split(". ")) {
                    let words = sentence.split_whitespace().count();
                    assert!(words <= 25, "{}: {sentence}", command.get_name());
                }
            }
            command.get_subcommands().for_each(check);
        }
        check(&command());
    }
}

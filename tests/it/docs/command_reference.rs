//! The command reference, which comes from the definition of the command line.

use std::collections::BTreeSet;

use clap::{Arg, Command};

use super::tables::{Tables, hold, table};
use super::{help, read};

const PAGE: &str = "docs/src/reference/cli.md";

/// Commands whose common options are the planning options.
const PLANNING: [&str; 4] = ["plan", "apply", "drift", "explain"];

/// Commands whose common options are the view options.
const VIEW: [&str; 2] = ["plan", "show"];

/// Returns the commands without subcommands, by their words.
fn leaves(command: &Command, words: &str) -> Vec<(String, Command)> {
    let mut found = Vec::new();
    for nested in command.get_subcommands() {
        let words = format!("{words} {}", nested.get_name()).trim().to_owned();
        if nested.has_subcommands() {
            found.extend(leaves(nested, &words));
        } else {
            found.push((words, nested.clone()));
        }
    }
    found
}

/// Returns name and help of an option, by which commands share it.
fn key(arg: &Arg) -> (String, String) {
    (arg.get_id().to_string(), help_text(arg))
}

fn options(command: &Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set())
}

/// Returns the options that all these commands have, with the same help.
fn common(leaves: &[(String, Command)], names: &[&str]) -> BTreeSet<(String, String)> {
    let commands = leaves.iter().filter(|(name, _)| names.contains(&name.as_str()));
    let sets = commands.map(|(_, command)| options(command).map(key).collect::<BTreeSet<_>>());
    sets.reduce(|all, more| &all & &more).expect("a command")
}

fn help_text(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    help.map(ToString::to_string).unwrap_or_default()
}

/// Returns the name of an option or an argument with its value.
fn name(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(|names| names.first()).map(ToString::to_string);
    let value = value.unwrap_or_else(|| arg.get_id().as_str().to_uppercase());
    if arg.is_positional() {
        let many =
            if arg.get_num_args().is_some_and(|count| count.max_values() > 1) { "…" } else { "" };
        return if arg.is_required_set() {
            format!("`<{value}>{many}`")
        } else {
            format!("`[{value}]{many}`")
        };
    }
    let value = match arg.get_num_args() {
        _ if !arg.get_action().takes_values() => String::new(),
        Some(count) if count.min_values() == 0 => format!("[=<{value}>]"),
        _ => format!(" <{value}>"),
    };
    let short = arg.get_short().map(|short| format!("`-{short}`"));
    let long = arg.get_long().map(|long| format!("`--{long}{value}`"));
    short.into_iter().chain(long).collect::<Vec<_>>().join(", ")
}

/// Returns default and meaning of an option: `[default: …]` in the help is the default.
fn default_and_meaning(arg: &Arg) -> (String, String) {
    let mut text = help_text(arg);
    let mut default = String::new();
    for start in ["[default: ", "[default address: "] {
        if let Some((before, rest)) = text.clone().split_once(start) {
            let (value, after) = rest.split_once(']').expect("the end of the default");
            value.clone_into(&mut default);
            text = format!("{} {}", before.trim_end(), after.trim_start());
        }
    }
    let takes_values = arg.get_action().takes_values();
    let values = arg.get_default_values().iter().map(|value| format!("`{}`", value.display()));
    let values: Vec<String> = values.collect();
    if takes_values && !values.is_empty() {
        default = values.join(", ");
    }
    let paragraphs = text.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>());
    let mut sentences: Vec<String> = paragraphs
        .map(|words| words.join(" "))
        .filter(|text| !text.is_empty())
        .map(|text| if text.ends_with('.') { text } else { format!("{text}.") })
        .collect();
    if arg.is_required_set() && !arg.is_positional() {
        sentences.push("Required.".to_owned());
    }
    if takes_values && !arg.is_hide_possible_values_set() {
        sentences.extend(
            arg.get_possible_values().iter().filter(|value| !value.is_hide_set()).map(|value| {
                match value.get_help() {
                    Some(help) => {
                        format!("`{}`: {}.", value.get_name(), lower_first(&help.to_string()))
                    }
                    None => format!("`{}`.", value.get_name()),
                }
            }),
        );
    }
    (default, sentences.join(" "))
}

fn lower_first(text: &str) -> String {
    let mut letters = text.chars();
    let is_word = text.chars().nth(1).is_some_and(char::is_lowercase);
    let is_name = ["Amazon", "Bottlerocket", "Windows"].iter().any(|name| text.starts_with(name));
    match letters.next() {
        Some(first) if is_word && !is_name => {
            format!("{}{}", first.to_lowercase(), letters.as_str())
        }
        _ => text.to_owned(),
    }
}

fn option_table<'a>(head: &str, arguments: impl Iterator<Item = &'a Arg>) -> Option<String> {
    let rows: Vec<_> = arguments
        .map(|arg| {
            let (default, meaning) = default_and_meaning(arg);
            [name(arg), default, meaning]
        })
        .collect();
    (!rows.is_empty()).then(|| table([head, "default", "meaning"], &rows))
}

/// Returns a table of commands for each group of `fleetwright --help`.
fn command_tables() -> Vec<(String, String)> {
    let help = help("");
    let (mut group, mut groups) = (None, Vec::<(String, Vec<[String; 2]>)>::new());
    for line in help.lines() {
        if !line.starts_with(' ') && !line.is_empty() {
            group = line.strip_suffix(':').filter(|name| !name.contains("options"));
            let name = group.filter(|name| *name != "Examples");
            groups.extend(name.map(|name| (format!("commands: {name}"), Vec::new())));
        } else if let (Some(_), Some((name, about))) = (group, line.trim().split_once("  ")) {
            let Some((_, rows)) = groups.last_mut().filter(|_| line.starts_with("  ")) else {
                continue;
            };
            if line.starts_with("  fleetwright") || name == "help" {
                continue;
            }
            rows.push([name.to_owned(), format!("{}.", about.trim())]);
        }
    }
    let nested = |name: &str| -> Vec<String> {
        let all = leaves(&fleetwright::cli::definition(), "");
        let all = all.into_iter().map(|(words, _)| words);
        all.filter(|words| words.split(' ').next() == Some(name)).collect()
    };
    let row = |[name, about]: [String; 2]| {
        let links = nested(&name);
        let links = links.iter().map(|words| format!("[`{words}`](#{})", words.replace(' ', "-")));
        [links.collect::<Vec<_>>().join(", "), about]
    };
    let tables = groups.into_iter().map(|(name, rows)| {
        let rows: Vec<_> = rows.into_iter().map(row).collect();
        (name, table(["command", "purpose"], &rows))
    });
    tables.collect()
}

#[test]
fn command_reference_comes_from_the_program() {
    let definition = fleetwright::cli::definition();
    let leaves = leaves(&definition, "");
    let (planning, view) = (common(&leaves, &PLANNING), common(&leaves, &VIEW));
    let mut tables: Tables = command_tables().into_iter().collect();
    let global = option_table("option", options(&definition)).expect("global options");
    tables.insert("global options".to_owned(), global);
    let plan = &leaves.iter().find(|(name, _)| name == "plan").expect("plan").1;
    for heading in ["Plan", "Source", "Safety"] {
        let shared = options(plan).filter(|arg| planning.contains(&key(arg)));
        let shared = shared.filter(|arg| arg.get_help_heading() == Some(heading));
        let shared = option_table("option", shared).expect("planning options");
        tables.insert(format!("planning options: {heading}"), shared);
    }
    let shared = option_table("option", options(plan).filter(|arg| view.contains(&key(arg))));
    tables.insert("view options".to_owned(), shared.expect("view options"));
    for (name, command) in &leaves {
        let positional = command.get_arguments().filter(|arg| arg.is_positional());
        let arguments = option_table("argument", positional);
        tables.extend(arguments.map(|rows| (format!("arguments of {name}"), rows)));
        let is_shared = |arg: &Arg| {
            PLANNING.contains(&name.as_str()) && planning.contains(&key(arg))
                || VIEW.contains(&name.as_str()) && view.contains(&key(arg))
        };
        let own = option_table("option", options(command).filter(|arg| !is_shared(arg)));
        tables.extend(own.map(|rows| (format!("options of {name}"), rows)));
    }
    hold(PAGE, &tables);
    let page = read(PAGE);
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let mut described: Vec<&str> =
        headings.into_iter().filter(|heading| !heading.ends_with("options")).collect();
    described.sort_unstable();
    let mut names: Vec<&str> = leaves.iter().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    assert_eq!(described, names, "sections of {PAGE}");
}

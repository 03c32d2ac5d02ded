//! Checks the commands and options that pages name, whether or not they run.

use std::collections::{BTreeMap, BTreeSet};

use super::page::blocks;
use super::session::logical_lines;
use super::{help, long_options, pages_below, read, subcommands, without_code_blocks};

/// Commands that builds without the feature `cluster` lack.
const CLUSTER_COMMANDS: &[&str] = &["preflight"];

/// Commands of the program and their long options.
struct Options {
    commands: BTreeMap<String, BTreeSet<String>>,
    groups: BTreeSet<String>,
}

impl Options {
    fn of_program() -> Self {
        let mut options = Self { commands: BTreeMap::new(), groups: BTreeSet::new() };
        let mut pending = subcommands(&help(""));
        while let Some(command) = pending.pop() {
            let text = help(&command);
            let nested = subcommands(&text);
            if nested.is_empty() {
                let names = long_options(&text).into_iter().map(str::to_owned).collect();
                options.commands.insert(command, names);
            } else {
                pending.extend(nested.iter().map(|name| format!("{command} {name}")));
                options.groups.insert(command);
            }
        }
        options
    }

    /// Returns the reason why the program would not accept the arguments.
    fn refusal(&self, call: &Call) -> Option<String> {
        let words: Vec<&str> = call.arguments.iter().map(String::as_str).collect();
        let name = match &words[..] {
            [] => return None,
            // A placeholder, or an option that every command has.
            [first, ..] if first.starts_with(['-', '…']) || **first == first.to_uppercase() => {
                return None;
            }
            [group, name, ..] if self.groups.contains(*group) => format!("{group} {name}"),
            [name, ..] => (*name).to_owned(),
        };
        let Some(known) = self.commands.get(&name) else {
            let is_left_out = cfg!(not(feature = "cluster")) && CLUSTER_COMMANDS.contains(&&*name);
            if is_left_out || !call.is_certain {
                return None;
            }
            return Some(format!("there is no command `{name}`"));
        };
        let options = words.iter().filter(|word| word.starts_with("--") && word.len() > 2);
        let mut options = options.map(|word| word.split('=').next().unwrap_or_default());
        let unknown = options.find(|option| !known.contains(*option))?;
        Some(format!("`{name}` has no option {unknown}"))
    }
}

/// A call of the program.
struct Call {
    arguments: Vec<String>,
    /// True if a line begins with the program. Within a line, its name may also be that of a release,
    /// an image or a namespace.
    is_certain: bool,
}

/// Returns the calls of the program in a script.
fn calls(script: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    for line in logical_lines(script) {
        for command in line.split(['|', ';', '&', '>', '(', ')']) {
            let words = command.split_whitespace().map(|word| word.trim_matches(['"', '\'', '`']));
            let words: Vec<String> = words.map(str::to_owned).collect();
            let is_cargo = words.len() > 2 && words[..2] == ["cargo", "run"];
            let is_certain = is_cargo || words.first().is_some_and(|word| word == "fleetwright");
            let name = if is_cargo { "--" } else { "fleetwright" };
            let start = if is_certain {
                words.iter().position(|word| word == name)
            } else {
                words.iter().rposition(|word| word == name)
            };
            if let Some(start) = start {
                calls.push(Call { arguments: words[start + 1..].to_vec(), is_certain });
            }
        }
    }
    calls
}

/// Commands that no test can run have the right options, at least.
#[test]
fn commands_and_options_exist() {
    let options = Options::of_program();
    let mut pages = pages_below("docs/src");
    pages.extend(pages_below("deploy"));
    pages.extend(pages_below("examples"));
    pages.push("README.md".to_owned());
    let (mut checked, mut wrong) = (0, Vec::new());
    for page in &pages {
        let text = read(page);
        let shell = blocks(&text);
        let shell =
            shell.iter().filter(|block| ["sh", "console"].contains(&block.language.as_str()));
        let mut scripts: Vec<String> = shell
            .map(|block| block.text.replace("\n$ ", "\n").trim_start_matches("$ ").to_owned())
            .collect();
        let prose = without_code_blocks(&text);
        let spans = prose.split('`').skip(1).step_by(2);
        scripts.extend(spans.filter(|span| span.starts_with("fleetwright ")).map(str::to_owned));
        for call in scripts.iter().flat_map(|script| calls(script)) {
            checked += 1;
            let refusal = options.refusal(&call);
            let arguments = call.arguments.join(" ");
            wrong.extend(refusal.map(|why| format!("{page}: {arguments}: {why}")));
        }
    }
    assert!(checked > 50, "only {checked} commands");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_options_are_found() {
    let options = Options::of_program();
    let refusal = |line: &str| calls(line).iter().find_map(|call| options.refusal(call));
    assert_eq!(refusal("cargo run --locked -- plan . --world live --out=plan.json"), None);
    assert_eq!(refusal("helm upgrade fleetwright deploy/helm/fleetwright"), None);
    assert!(refusal("kubectl exec pod -- fleetwright plan --no-such").is_some());
    assert!(refusal("fleetwright catalog show").is_some());
    assert!(refusal("fleetwright plam").is_some());
}

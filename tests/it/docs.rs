//! Documentation: links and anchors, the summary of the book, terms, and reference pages that must
//! agree with the program and its files.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[cfg(feature = "aws")]
mod call_budgets;
#[cfg(all(feature = "cluster", feature = "live", feature = "page", feature = "sandbox"))]
mod command_reference;
mod commands;
mod event_reference;
mod exit_codes;
mod fleet_blocks;
mod karpenter_features;
mod options;
mod page;
mod policy_input;
mod prose;
mod session;
mod settings;
mod shown_output;
mod tables;
mod threat_model;

use fleetwright::model::code::Code;

/// Beginning of web addresses of this repository. Pages of the book link files outside of the book
/// by address, because relative links to them do not work in the built book.
const REPOSITORY: &str = "https://github.com/fleetwright/fleetwright/";

const SUMMARY: &str = "docs/src/SUMMARY.md";

const README_LINES_MAX: usize = 250;

/// Words to use, each with words and phrases that documentation avoids in their place. Words with
/// frequent other meanings, such as `held` or `shown`, are not listed.
const TERMS: &[(&str, &[&str])] = &[
    ("instance or node", &["machine", "machines"]),
    (
        "terminate, drain, evict or interruption",
        &["goes", "leaves", "taken back", "takes back", "has to go", "have to go", "told to end"],
    ),
    ("unschedulable or pending pods", &["without a place", "no place", "pods that wait"]),
    ("blocked by", &["held back", "holds back", "kept", "barred"]),
    ("in progress or queued", &["under way"]),
    ("observe", &["look", "looks", "looked", "looking"]),
    ("controller or reconcile", &["loop", "loops"]),
    ("competing autoscaler", &["rival", "rivals", "stranger", "strangers", "others"]),
    ("persisted state", &["desk"]),
    ("leader, lease or standby", &["leads", "follows", "lent"]),
    ("break-glass", &["break the glass", "breaks the glass", "broke the glass", "passed over"]),
    (
        "placement simulation, scheduling order or tie-breaking",
        &["rehearsal", "rehearsed", "luck", "draws", "play", "plays", "played", "stage", "cast"],
    ),
    ("column, pattern or dual price", &["filling", "worth", "ware", "wares", "blank", "nursery"]),
    ("topology domain, spread or anti-affinity", &["lot", "lots", "allotment", "apart", "company"]),
    (
        "replace, scale down, consolidate or roll out",
        &["exchange", "exchanged", "give up", "gives up", "given up", "let go", "lets go"],
    ),
    ("operator, user or owner", &["somebody", "someone", "whoever", "people"]),
    ("retry, backoff, timeout or deadline", &["again", "patience", "hurried"]),
];

/// Phrases with listed words in another meaning.
const HONEST_USES: &[&str] = &[
    "as follows",
    "delivers the workloads again",
    "follows the files",
    "follows the repository",
    "its public half goes to",
    "look up",
    "looked up",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the Markdown files below a directory, as sorted paths relative to the root.
fn pages_below(directory: &str) -> Vec<String> {
    let mut pages = Vec::new();
    let mut pending = vec![root().join(directory)];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let path = path.strip_prefix(root()).expect("a path below the root");
                pages.push(path.to_str().expect("UTF-8").to_owned());
            }
        }
    }
    pages.sort();
    pages
}

fn is_list_item(line: &str) -> bool {
    let after_number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with("- ")
        || line.starts_with("* ")
        || line.starts_with('|')
        || (after_number.len() < line.len() && after_number.starts_with(". "))
}

/// Returns a page without its code blocks, fenced or indented.
fn without_code_blocks(page: &str) -> String {
    let mut text = String::new();
    let mut is_fenced = false;
    // True after a blank line and within an indented block.
    let mut may_be_indented = true;
    for line in page.lines() {
        let trimmed = line.trim_start();
        if trimmed.starts_with("```") {
            is_fenced = !is_fenced;
            may_be_indented = true;
        } else if !(is_fenced
            || may_be_indented && line.starts_with("    ") && !is_list_item(trimmed))
        {
            may_be_indented = trimmed.is_empty();
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// Returns a page without code blocks and code spans.
fn without_code(page: &str) -> String {
    let text = without_code_blocks(page);
    text.split('`').step_by(2).collect::<Vec<_>>().join(" ")
}

/// Returns the targets of the links in a text without code.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter_map(|target| target.split_whitespace().next()).collect()
}

/// Returns the anchors of the headings of a page, as GitHub and the book form them.
fn anchors(page: &str) -> BTreeSet<String> {
    let text = without_code_blocks(page);
    let headings = text.lines().filter_map(|line| {
        line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ').map(str::trim)
    });
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    let mut anchors = BTreeSet::new();
    for heading in headings {
        let is_part = |c: &char| c.is_alphanumeric() || *c == '-' || *c == '_';
        let spaced = heading.to_lowercase().replace(' ', "-");
        let anchor: String = spaced.chars().filter(is_part).collect();
        let count = seen.entry(anchor.clone()).or_default();
        anchors.insert(if *count == 0 { anchor } else { format!("{anchor}-{count}") });
        *count += 1;
    }
    anchors
}

/// Returns the file that a link names, relative to the root, and the anchor in it. Returns `None`
/// for addresses outside of this repository.
fn linked_file<'l>(page: &str, link: &'l str) -> Option<(PathBuf, Option<&'l str>)> {
    let (path, anchor) = match link.split_once('#') {
        Some((path, anchor)) => (path, Some(anchor)),
        None => (link, None),
    };
    if let Some(rest) = path.strip_prefix(REPOSITORY) {
        let file = rest.strip_prefix("blob/main/").or_else(|| rest.strip_prefix("tree/main/"))?;
        return Some((PathBuf::from(file), anchor));
    }
    if path.contains(':') {
        return None;
    }
    let page = Path::new(page);
    let file = match path {
        "" => page.to_path_buf(),
        path => page.parent().expect("a directory").join(path),
    };
    Some((file, anchor))
}

fn resolves(file: &Path, anchor: Option<&str>) -> bool {
    let file = root().join(file);
    match anchor {
        None => file.exists(),
        Some(anchor) => fs::read_to_string(&file).is_ok_and(|page| anchors(&page).contains(anchor)),
    }
}

#[test]
fn links_and_anchors_resolve() {
    let mut pages = pages_below("docs");
    pages.extend(pages_below("deploy"));
    pages.extend(
        ["README.md", "src/README.md", ".github/CONTRIBUTING.md", "CHANGELOG.md"].map(String::from),
    );
    let (mut checked, mut broken) = (0_u32, Vec::new());
    for page in &pages {
        let text = without_code(&read(page));
        for link in links(&text) {
            let Some((file, anchor)) = linked_file(page, link) else { continue };
            checked += 1;
            if !resolves(&file, anchor) {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(checked > 100, "only {checked} links");
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn summary_lists_every_page_once() {
    let summary = read(SUMMARY);
    let mut listed: Vec<String> =
        links(&summary).into_iter().map(|link| format!("docs/src/{link}")).collect();
    listed.sort();
    let mut pages = pages_below("docs/src");
    pages.retain(|page| page != SUMMARY);
    assert_eq!(listed, pages);
}

/// Returns the words of a page without code and link targets, in lower case, each between spaces.
fn spaced_words(page: &str) -> String {
    let text = without_code(&prose::without_comments(page));
    let mut parts = text.split("](");
    let mut prose = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        prose.push(' ');
        prose.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    let is_word = |c: char| c.is_alphanumeric() || c == '-' || c == '_' || c == '\'';
    let prose = prose.to_lowercase();
    let words: Vec<&str> =
        prose.split(|c: char| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let mut spaced = format!(" {} ", words.join(" "));
    for phrase in HONEST_USES {
        spaced = spaced.replace(&format!(" {phrase} "), " ");
    }
    spaced
}

/// Returns a message for each term in a text that the glossary avoids.
fn avoided_terms(place: &str, text: &str) -> Vec<String> {
    let words = spaced_words(text);
    let mut found = Vec::new();
    for (instead, avoided) in TERMS {
        let used = avoided.iter().filter(|term| words.contains(&format!(" {term} ")));
        found.extend(used.map(|term| format!("{place}: `{term}`; say {instead}")));
    }
    found
}

#[test]
fn documentation_uses_the_terms_of_the_glossary() {
    let mut pages = pages_below("docs/src");
    pages.extend(["README.md", "CHANGELOG.md"].map(String::from));
    let mut found = Vec::new();
    for page in &pages {
        found.extend(avoided_terms(page, &read(page)));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn code_spans_of_checked_pages_are_closed() {
    let mut pages = pages_below("docs/src");
    pages.extend(pages_below("deploy"));
    pages.extend(
        ["README.md", "src/README.md", ".github/CONTRIBUTING.md", "CHANGELOG.md"].map(String::from),
    );
    for page in &pages {
        let ticks = without_code_blocks(&read(page)).matches('`').count();
        assert_eq!(ticks % 2, 0, "{page}: a code span is not closed");
    }
}

#[test]
fn readme_is_short() {
    let lines = read("README.md").lines().count();
    assert!(lines <= README_LINES_MAX, "{lines} lines");
}

#[test]
fn runbook_has_an_entry_for_each_alert() {
    let alerts = read("deploy/grafana/alerts.yaml");
    let alerts: Vec<&str> =
        alerts.lines().filter_map(|line| line.trim_start().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let runbook = read("docs/src/operations/runbook.md");
    let entries: Vec<&str> = runbook.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    assert_eq!(entries, alerts);
}

#[test]
fn code_reference_lists_exactly_the_codes() {
    let page = read("docs/src/reference/errors.md");
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let expected = Code::ALL.iter();
    let expected =
        expected.map(|code| format!("| `{code}` | {} | {} |", code.cause(), code.remedy()));
    assert_eq!(rows.collect::<Vec<_>>(), expected.collect::<Vec<_>>());
}

/// Returns the help of a command, whose words are separated by spaces.
fn help(command: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(command.split_whitespace())
        .arg("--help")
        .output()
        .expect("the program runs");
    assert!(output.status.success(), "{command}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Headings of lists of commands.
const COMMAND_LISTS: [&str; 5] = ["Commands:", "Plan and apply:", "Inspect:", "Run:", "Set up:"];

fn subcommands(help: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_list = false;
    for line in help.lines() {
        if !line.starts_with(' ') {
            is_list = COMMAND_LISTS.contains(&line) || (is_list && line.is_empty());
        } else if is_list && !line.starts_with("   ") {
            names.extend(line.split_whitespace().next().map(str::to_owned));
        }
    }
    names.retain(|name| name != "help");
    names
}

/// Returns the long options that a help text lists.
fn long_options(help: &str) -> BTreeSet<&str> {
    let lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let names = lines.flat_map(|line| {
        line.split([' ', ',', '[', '.'])
            .take_while(|word| word.is_empty() || word.starts_with('-'))
            .filter(|word| word.starts_with("--"))
    });
    names.collect()
}

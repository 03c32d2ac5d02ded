//! Language and runner of test scripts.
//!
//! A script runs in its own directory. Each line is one step:
//!
//! ```text
//! # comment
//! example NAME                 copy examples/NAME into the directory
//! write FILE                   write the indented lines that follow, without two spaces of indent
//! set FILE KEY=VALUE           change the value of the only `KEY: …` of a YAML or JSON file
//! remove FILE                  remove a file, or a directory with its contents
//! link FILE TARGET             create a symbolic link
//! append FILE                  add the indented lines to the file, as a new document
//! commit MESSAGE               commit all files; the first commit creates the repository
//! hold DIRECTORY               lock a world like an apply, until `release`
//! env NAME=VALUE               set an environment variable for later runs
//! run ARGUMENTS [-> CODE]      run the program, which must exit with CODE (default: 0)
//! ```
//!
//! Expectations check the last run:
//!
//! ```text
//! out TEXT, err TEXT           stdout, stderr has a line that contains TEXT
//! not TEXT                     neither contains TEXT
//! first TEXT, last TEXT        the first, last line of stdout is TEXT
//! absent FILE                  the file or directory does not exist
//! silent out, silent err       stdout, stderr is empty
//! json PATH OP VALUE           compares a value of the JSON on stdout (`a.0.b`; `#`: length)
//! fleet COUNT TYPE, …          nodes after the plan on stdout; `none` for no node
//! cost OP COUNT TYPE, …        price per hour, compared with the list price of these nodes
//! golden NAME                  stdout equals golden/NAME
//! keep NAME PATH               store a value of the JSON on stdout as $NAME
//! ```
//!
//! OP is `=`, `!=`, `<=`, `<`, `>=` or `>`. `\e` is the escape character.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use git2::{IndexAddOption, Repository, Signature, Time};
use serde_json::Value;

use crate::binary::{CommandResult, Workspace};
use crate::golden;

/// Time of each commit, in seconds since the Unix epoch.
const COMMITTED: i64 = 1_788_256_800;

/// Runs `scripts/NAME`.
///
/// # Panics
/// Panics with file, line and output of the last run if a step fails.
pub(crate) fn run_script(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts").join(name);
    let text = fs::read_to_string(&path).expect("the script is readable");
    let (workspace, last_run) = (Workspace::empty(), CommandResult::default());
    let mut script = ScriptRun { workspace, last_run, values: BTreeMap::new(), lock: None };
    for step in steps(&text) {
        let rest = script.expand(step.rest);
        if let Err(why) = script.step(&ScriptStep { rest: &rest, ..step.clone() }) {
            let CommandResult { out, err, .. } = &script.last_run;
            panic!(
                "tests/it/scripts/{name}:{}: {} {}\n{why}\n--- stdout\n{out}\n--- stderr\n{err}",
                step.line, step.word, step.rest
            );
        }
    }
}

/// One line of a script, and the indented lines below it.
#[derive(Clone)]
struct ScriptStep<'a> {
    line: usize,
    word: &'a str,
    rest: &'a str,
    body: String,
}

fn steps(text: &str) -> Vec<ScriptStep<'_>> {
    let mut steps: Vec<ScriptStep<'_>> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let body = line.strip_prefix("  ").or(line.is_empty().then_some(""));
        match (body, steps.last_mut()) {
            (Some(body), Some(step)) if ["write", "append"].contains(&step.word) => {
                step.body.push_str(body);
                step.body.push('\n');
            }
            _ if line.is_empty() || line.starts_with('#') => {}
            _ => {
                let (word, rest) = line.trim().split_once(' ').unwrap_or((line.trim(), ""));
                steps.push(ScriptStep { line: index + 1, word, rest, body: String::new() });
            }
        }
    }
    steps
}

struct ScriptRun {
    workspace: Workspace,
    /// The result of the last run.
    last_run: CommandResult,
    /// Values that `keep` stored, by name.
    values: BTreeMap<String, String>,
    /// Lock of a world, from `hold`.
    lock: Option<fs::File>,
}

impl ScriptRun {
    fn expand(&self, text: &str) -> String {
        let known = self.values.iter().map(|(name, value)| (format!("${name}"), value));
        known.fold(text.replace("\\e", "\u{1b}"), |text, (name, value)| text.replace(&name, value))
    }

    fn step(&mut self, step: &ScriptStep<'_>) -> Result<(), String> {
        let ScriptStep { word, rest, body, .. } = step;
        match *word {
            "example" => {
                self.workspace.copy_example(rest);
                Ok(())
            }
            "write" => {
                self.workspace.write(rest, &format!("{}\n", body.trim_end()));
                Ok(())
            }
            "append" => {
                let text = format!("{}---\n{}\n", self.workspace.read(rest), body.trim_end());
                self.workspace.write(rest, &text);
                Ok(())
            }
            "env" => {
                let (name, value) = rest.split_once('=').ok_or("write env NAME=VALUE")?;
                self.workspace.variables.insert(name.to_owned(), value.to_owned());
                Ok(())
            }
            "hold" => {
                let directory =
                    fs::File::open(self.workspace.path(rest)).map_err(|e| e.to_string())?;
                directory.try_lock().map_err(|error| error.to_string())?;
                self.lock = Some(directory);
                Ok(())
            }
            "release" => self.lock.take().map(drop).ok_or("no world is locked".to_owned()),
            "keep" => {
                let (name, path) = rest.split_once(' ').ok_or("write keep NAME PATH")?;
                self.values.insert(name.to_owned(), to_text(&value_at(&self.parsed()?, path)));
                Ok(())
            }
            "set" => self.set(rest),
            "remove" => self.remove(rest),
            "link" => self.link(rest),
            "commit" => self.commit(rest).map_err(|error| error.message().to_owned()),
            "run" => self.run(rest),
            "out" => contains(&self.last_run.out, rest),
            "err" => contains(&self.last_run.err, rest),
            "not" => lacks(&self.last_run.out, rest).and(lacks(&self.last_run.err, rest)),
            "first" => equals(self.last_run.out.lines().next().unwrap_or_default(), rest),
            "last" => equals(self.last_run.out.lines().last().unwrap_or_default(), rest),
            "silent" => {
                equals(if *rest == "err" { &self.last_run.err } else { &self.last_run.out }, "")
            }
            "absent" if self.workspace.path(rest).exists() => Err(format!("{rest} exists")),
            "absent" => Ok(()),
            "json" => self.json(rest),
            "fleet" => self.fleet(rest),
            "cost" => self.cost(rest),
            "golden" => self.golden(rest),
            other => Err(format!("`{other}` is not a step")),
        }
    }

    fn set(&self, rest: &str) -> Result<(), String> {
        let (file, (key, value)) = rest
            .split_once(' ')
            .and_then(|(file, rest)| Some((file, rest.split_once('=')?)))
            .ok_or("write set FILE KEY=VALUE")?;
        let text = self.workspace.read(file);
        let of_line = |line: &str| {
            // In YAML `key: value`, in JSON `"key": value,`.
            let (before, old) = line.split_once(": ")?;
            let name = before.trim_start().trim_matches('"');
            let end = if before.ends_with('"') && old.ends_with(',') { "," } else { "" };
            (name == key).then(|| format!("{before}: {value}{end}"))
        };
        let count = text.lines().filter(|line| of_line(line).is_some()).count();
        if count != 1 {
            return Err(format!("{file} has {count} lines `{key}: …` instead of one"));
        }
        let lines =
            text.lines().map(|line| of_line(line).unwrap_or_else(|| line.to_owned()) + "\n");
        self.workspace.write(file, &lines.collect::<String>());
        Ok(())
    }

    fn remove(&self, file: &str) -> Result<(), String> {
        let path = self.workspace.path(file);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.map_err(|error| error.to_string())
    }

    fn link(&self, rest: &str) -> Result<(), String> {
        let (file, target) = rest.split_once(' ').ok_or("write link FILE TARGET")?;
        std::os::unix::fs::symlink(target, self.workspace.path(file))
            .map_err(|error| error.to_string())
    }

    fn commit(&self, message: &str) -> Result<(), git2::Error> {
        let repository = match Repository::open(self.workspace.root()) {
            Ok(repository) => repository,
            Err(_) => Repository::init(self.workspace.root())?,
        };
        let mut index = repository.index()?;
        index.add_all(["*"], IndexAddOption::DEFAULT, None)?;
        index.update_all(["*"], None)?;
        index.write()?;
        let tree = repository.find_tree(index.write_tree()?)?;
        let who = Signature::new("Ada", "ada@example.com", &Time::new(COMMITTED, 0))?;
        let parent = repository.head().ok().and_then(|head| head.peel_to_commit().ok());
        let parents: Vec<_> = parent.iter().collect();
        repository.commit(Some("HEAD"), &who, &who, message, &tree, &parents).map(drop)
    }

    fn run(&mut self, rest: &str) -> Result<(), String> {
        let rest = format!(" {rest}");
        let (typed, code) = match rest.rsplit_once(" -> ") {
            None => (rest.as_str(), 0),
            Some((typed, code)) => (typed, code.parse().map_err(|_| "no exit code")?),
        };
        let arguments = words(typed)?;
        self.last_run = self.workspace.run(&arguments);
        let mut panicked = self.last_run.err.lines().filter(|line| line.contains("panicked at"));
        if self.last_run.code == Some(code) && panicked.next().is_none() {
            return Ok(());
        }
        Err(format!("exited with {:?} instead of {code}", self.last_run.code))
    }

    fn parsed(&self) -> Result<Value, String> {
        serde_json::from_str(&self.last_run.out)
            .map_err(|error| format!("stdout is not JSON: {error}"))
    }

    fn json(&self, rest: &str) -> Result<(), String> {
        let mut parts = rest.splitn(3, ' ');
        let (Some(path), Some(op), Some(expected)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err("write json PATH OP VALUE".to_owned());
        };
        let found = to_text(&value_at(&self.parsed()?, path));
        let decimal = |text: &str| to_micro(text).ok_or(format!("{path} is {found}"));
        let order = match op {
            "=" | "!=" => found.as_str().cmp(expected),
            _ => decimal(&found)?.cmp(&decimal(expected)?),
        };
        compare(op, order)?.then_some(()).ok_or(format!("{path} is {found}"))
    }

    fn fleet(&self, rest: &str) -> Result<(), String> {
        let plan = self.parsed()?;
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        let rows = plan["resource_changes"].as_array().ok_or("stdout is not a plan")?;
        for row in rows.iter().filter(|row| !row["change"]["after"].is_null()) {
            *found.entry(to_text(&row["change"]["after"]["instance_type"])).or_default() += 1;
        }
        let expected = node_counts(rest)?;
        if found == expected { Ok(()) } else { Err(format!("the nodes after are {found:?}")) }
    }

    fn cost(&self, rest: &str) -> Result<(), String> {
        let (op, rest) = rest.split_once(' ').ok_or("write cost OP COUNT TYPE, …")?;
        let mut expected = 0;
        for (kind, count) in node_counts(rest)? {
            expected += i64::from(count) * self.price(&kind)?;
        }
        let hourly = to_text(&value_at(&self.parsed()?, "capacity.cost.hourly_after"));
        let found = to_micro(&hourly).ok_or("stdout is not a plan")?;
        let right = compare(op, found.cmp(&expected))?;
        right
            .then_some(())
            .ok_or(format!("the price is {found} micro-USD per hour, not {op} {expected}"))
    }

    /// Returns the on-demand list price of a type, in micro-USD an hour.
    fn price(&self, kind: &str) -> Result<i64, String> {
        let result = self.workspace.run(&["catalog", "explain", kind, "--format", "json"]);
        let found: Value = serde_json::from_str(&result.out).map_err(|_| result.err.clone())?;
        let offerings = found["offerings"].as_array().into_iter().flatten();
        let on_demand = offerings.filter(|row| row["capacity_type"] == "on-demand");
        let prices = on_demand.filter_map(|row| to_micro(row["hourly"].as_str()?));
        prices.min().ok_or(format!("{kind} has no price"))
    }

    fn golden(&self, name: &str) -> Result<(), String> {
        lacks(&self.last_run.out, &self.workspace.root().display().to_string())?;
        golden::hold(&format!("tests/it/golden/{name}"), &self.last_run.out)
    }
}

/// Splits arguments at spaces, except between single quotes.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words: Vec<String> = Vec::new();
    for (index, part) in text.split('\'').enumerate() {
        if index % 2 == 1 {
            words.push(part.to_owned());
        } else {
            words.extend(part.split_whitespace().map(str::to_owned));
        }
    }
    let quotes = text.matches('\'').count();
    if quotes.is_multiple_of(2) { Ok(words) } else { Err("a quote is not closed".to_owned()) }
}

/// Reads `2 m5.large, 1 c5.large`.
fn node_counts(text: &str) -> Result<BTreeMap<String, u32>, String> {
    if text == "none" {
        return Ok(BTreeMap::new());
    }
    let one = |part: &str| {
        let (count, kind) = part.trim().split_once(' ')?;
        Some((kind.to_owned(), count.parse().ok()?))
    };
    text.split(',').map(|part| one(part).ok_or("write COUNT TYPE, …".to_owned())).collect()
}

/// Parses a decimal with at most six decimals, in millionths.
fn to_micro(text: &str) -> Option<i64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let digits = part.len() <= 6 && part.bytes().all(|b| b.is_ascii_digit());
    let part: i64 = format!("{part:0<6}").parse().ok().filter(|_| digits)?;
    whole.parse::<i64>().ok()?.checked_mul(1_000_000)?.checked_add(part)
}

fn compare(op: &str, order: std::cmp::Ordering) -> Result<bool, String> {
    Ok(match op {
        "=" => order.is_eq(),
        "!=" => order.is_ne(),
        "<=" => order.is_le(),
        "<" => order.is_lt(),
        ">=" => order.is_ge(),
        ">" => order.is_gt(),
        _ => return Err(format!("`{op}` is not a comparison")),
    })
}

/// Returns the value at a dotted path; null if it does not exist.
fn value_at(value: &Value, path: &str) -> Value {
    path.split('.').fold(value.clone(), |value, key| match (&value, key) {
        (Value::Array(list), "#") => list.len().into(),
        (Value::Object(map), "#") => map.len().into(),
        (Value::Array(list), key) => {
            key.parse().ok().and_then(|n: usize| list.get(n)).cloned().unwrap_or_default()
        }
        (value, key) => value[key].clone(),
    })
}

/// Returns a value in the form of scripts: strings without quotes.
fn to_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn contains(text: &str, expected: &str) -> Result<(), String> {
    let found = text.lines().any(|line| line.contains(expected));
    found.then_some(()).ok_or("no line contains the text".to_owned())
}

fn lacks(text: &str, unwanted: &str) -> Result<(), String> {
    if text.contains(unwanted) { Err(format!("the output contains `{unwanted}`")) } else { Ok(()) }
}

fn equals(found: &str, expected: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("it is `{found}`")) }
}

//! The language of scripts and the runner.
//!
//! A script runs in a directory of its own. Each line is one step:
//!
//! ```text
//! # comment
//! example NAME                 begin with a copy of examples/NAME
//! write FILE                   write the indented lines that follow (two spaces are taken off)
//! set FILE KEY=VALUE           give the one `KEY: …` of a YAML or JSON file another value
//! remove FILE                  remove a file, or a directory with all it holds
//! link FILE TARGET             make a symbolic link
//! append FILE                  add the indented lines to the file, as one more document
//! commit MESSAGE               commit every file; the first one makes the repository
//! hold DIRECTORY               lock a world as an apply does, until `release`
//! env NAME=VALUE               set a variable for the runs that follow
//! run ARGUMENTS [-> CODE]      run the program, which ends with CODE (0 where none is given)
//! ```
//!
//! Expectations check the last run:
//!
//! ```text
//! out TEXT, err TEXT           stdout, stderr has a line that holds TEXT
//! not TEXT                     neither holds TEXT
//! first TEXT, last TEXT        the first, last line of stdout is TEXT
//! silent out, silent err       nothing was written there
//! json PATH OP VALUE           a value of the JSON on stdout (`a.0.b`; `#` counts), = != <= < >= >
//! fleet COUNT TYPE, …          the nodes there are after the plan on stdout; `none` for no node
//! cost OP COUNT TYPE, …        what they cost an hour, against the list price of such nodes
//! golden NAME                  stdout is golden/NAME
//! keep NAME PATH               call that value of the JSON on stdout $NAME from here on
//! ```
//!
//! In what is expected, `\e` is the escape character that terminals obey.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use git2::{IndexAddOption, Repository, Signature, Time};
use serde_json::Value;

use crate::binary::{CommandResult, Workspace};
use crate::golden;

/// The time of each commit.
const COMMITTED: i64 = 1_788_256_800;

/// Runs `scripts/NAME`.
///
/// # Panics
/// Panics with file, line and output of the last run where a step fails.
pub(crate) fn run_script(name: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/scripts").join(name);
    let text = fs::read_to_string(&path).expect("the script is readable");
    let (place, ran) = (Workspace::empty(), CommandResult::default());
    let mut script = ScriptRun { place, ran, kept: BTreeMap::new(), held: None };
    for step in steps(&text) {
        let rest = script.filled_in(step.rest);
        if let Err(why) = script.step(&ScriptStep { rest: &rest, ..step.clone() }) {
            let CommandResult { out, err, .. } = &script.ran;
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
    place: Workspace,
    /// The result of the last run.
    ran: CommandResult,
    /// Values by the name that `keep` gave them.
    kept: BTreeMap<String, String>,
    /// The lock of a world.
    held: Option<fs::File>,
}

impl ScriptRun {
    fn filled_in(&self, text: &str) -> String {
        let known = self.kept.iter().map(|(name, value)| (format!("${name}"), value));
        known.fold(text.replace("\\e", "\u{1b}"), |text, (name, value)| text.replace(&name, value))
    }

    fn step(&mut self, step: &ScriptStep<'_>) -> Result<(), String> {
        let ScriptStep { word, rest, body, .. } = step;
        match *word {
            "example" => {
                self.place.take(rest);
                Ok(())
            }
            "write" => {
                self.place.write(rest, &format!("{}\n", body.trim_end()));
                Ok(())
            }
            "append" => {
                let text = format!("{}---\n{}\n", self.place.read(rest), body.trim_end());
                self.place.write(rest, &text);
                Ok(())
            }
            "env" => {
                let (name, value) = rest.split_once('=').ok_or("write env NAME=VALUE")?;
                self.place.variables.insert(name.to_owned(), value.to_owned());
                Ok(())
            }
            "hold" => {
                let directory = fs::File::open(self.place.path(rest)).map_err(|e| e.to_string())?;
                directory.try_lock().map_err(|error| error.to_string())?;
                self.held = Some(directory);
                Ok(())
            }
            "release" => self.held.take().map(drop).ok_or("nothing is held".to_owned()),
            "keep" => {
                let (name, path) = rest.split_once(' ').ok_or("write keep NAME PATH")?;
                self.kept.insert(name.to_owned(), shown(&at(&self.parsed()?, path)));
                Ok(())
            }
            "set" => self.set(rest),
            "remove" => self.remove(rest),
            "link" => self.link(rest),
            "commit" => self.commit(rest).map_err(|error| error.message().to_owned()),
            "run" => self.run(rest),
            "out" => holds(&self.ran.out, rest),
            "err" => holds(&self.ran.err, rest),
            "not" => lacks(&self.ran.out, rest).and(lacks(&self.ran.err, rest)),
            "first" => same(self.ran.out.lines().next().unwrap_or_default(), rest),
            "last" => same(self.ran.out.lines().last().unwrap_or_default(), rest),
            "silent" => same(if *rest == "err" { &self.ran.err } else { &self.ran.out }, ""),
            "json" => self.json(rest),
            "fleet" => self.fleet(rest),
            "cost" => self.cost(rest),
            "golden" => self.golden(rest),
            other => Err(format!("`{other}` is no word of stories")),
        }
    }

    fn set(&self, rest: &str) -> Result<(), String> {
        let (file, (key, value)) = rest
            .split_once(' ')
            .and_then(|(file, rest)| Some((file, rest.split_once('=')?)))
            .ok_or("write set FILE KEY=VALUE")?;
        let text = self.place.read(file);
        let of_line = |line: &str| {
            // In YAML `key: value`, in JSON `"key": value,`.
            let (before, old) = line.split_once(": ")?;
            let name = before.trim_start().trim_matches('"');
            let end = if before.ends_with('"') && old.ends_with(',') { "," } else { "" };
            (name == key).then(|| format!("{before}: {value}{end}"))
        };
        let count = text.lines().filter(|line| of_line(line).is_some()).count();
        if count != 1 {
            return Err(format!("{file} has {count} lines `{key}: …`, not one"));
        }
        let lines =
            text.lines().map(|line| of_line(line).unwrap_or_else(|| line.to_owned()) + "\n");
        self.place.write(file, &lines.collect::<String>());
        Ok(())
    }

    fn remove(&self, file: &str) -> Result<(), String> {
        let path = self.place.path(file);
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        removed.map_err(|error| error.to_string())
    }

    fn link(&self, rest: &str) -> Result<(), String> {
        let (file, target) = rest.split_once(' ').ok_or("write link FILE TARGET")?;
        std::os::unix::fs::symlink(target, self.place.path(file)).map_err(|error| error.to_string())
    }

    fn commit(&self, message: &str) -> Result<(), git2::Error> {
        let repository = match Repository::open(self.place.root()) {
            Ok(repository) => repository,
            Err(_) => Repository::init(self.place.root())?,
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
        self.ran = self.place.run(&arguments);
        let mut panicked = self.ran.err.lines().filter(|line| line.contains("panicked at"));
        if self.ran.code == Some(code) && panicked.next().is_none() {
            return Ok(());
        }
        Err(format!("ended with {:?}, not {code}", self.ran.code))
    }

    fn parsed(&self) -> Result<Value, String> {
        serde_json::from_str(&self.ran.out).map_err(|error| format!("stdout is no JSON: {error}"))
    }

    fn json(&self, rest: &str) -> Result<(), String> {
        let mut parts = rest.splitn(3, ' ');
        let (Some(path), Some(op), Some(expected)) = (parts.next(), parts.next(), parts.next())
        else {
            return Err("write json PATH OP VALUE".to_owned());
        };
        let found = shown(&at(&self.parsed()?, path));
        let decimal = |text: &str| micro(text).ok_or(format!("{path} is {found}"));
        let order = match op {
            "=" | "!=" => found.as_str().cmp(expected),
            _ => decimal(&found)?.cmp(&decimal(expected)?),
        };
        compare(op, order)?.then_some(()).ok_or(format!("{path} is {found}"))
    }

    fn fleet(&self, rest: &str) -> Result<(), String> {
        let plan = self.parsed()?;
        let mut found: BTreeMap<String, u32> = BTreeMap::new();
        let rows = plan["resource_changes"].as_array().ok_or("stdout is no plan")?;
        for row in rows.iter().filter(|row| !row["change"]["after"].is_null()) {
            *found.entry(shown(&row["change"]["after"]["instance_type"])).or_default() += 1;
        }
        let expected = machines(rest)?;
        if found == expected { Ok(()) } else { Err(format!("the nodes after are {found:?}")) }
    }

    fn cost(&self, rest: &str) -> Result<(), String> {
        let (op, rest) = rest.split_once(' ').ok_or("write cost OP COUNT TYPE, …")?;
        let mut expected = 0;
        for (kind, count) in machines(rest)? {
            expected += i64::from(count) * self.price(&kind)?;
        }
        let hourly = shown(&at(&self.parsed()?, "capacity.cost.hourly_after"));
        let found = micro(&hourly).ok_or("stdout is no plan")?;
        let right = compare(op, found.cmp(&expected))?;
        right
            .then_some(())
            .ok_or(format!("they cost {found} micro-USD an hour, not {op} {expected}"))
    }

    /// Returns the on-demand list price of a type, in micro-USD an hour.
    fn price(&self, kind: &str) -> Result<i64, String> {
        let ran = self.place.run(&["catalog", "explain", kind, "--format", "json"]);
        let found: Value = serde_json::from_str(&ran.out).map_err(|_| ran.err.clone())?;
        let offerings = found["offerings"].as_array().into_iter().flatten();
        let on_demand = offerings.filter(|row| row["capacity_type"] == "on-demand");
        let prices = on_demand.filter_map(|row| micro(row["hourly"].as_str()?));
        prices.min().ok_or(format!("{kind} has no price"))
    }

    fn golden(&self, name: &str) -> Result<(), String> {
        lacks(&self.ran.out, &self.place.root().display().to_string())?;
        golden::hold(&format!("tests/it/golden/{name}"), &self.ran.out)
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
fn machines(text: &str) -> Result<BTreeMap<String, u32>, String> {
    if text == "none" {
        return Ok(BTreeMap::new());
    }
    let one = |part: &str| {
        let (count, kind) = part.trim().split_once(' ')?;
        Some((kind.to_owned(), count.parse().ok()?))
    };
    text.split(',').map(|part| one(part).ok_or("write COUNT TYPE, …".to_owned())).collect()
}

/// Returns a decimal with at most six places, times a million.
fn micro(text: &str) -> Option<i64> {
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
        _ => return Err(format!("`{op}` compares nothing")),
    })
}

/// Returns the value at a dotted path; null where there is none.
fn at(value: &Value, path: &str) -> Value {
    path.split('.').fold(value.clone(), |value, key| match (&value, key) {
        (Value::Array(list), "#") => list.len().into(),
        (Value::Object(map), "#") => map.len().into(),
        (Value::Array(list), key) => {
            key.parse().ok().and_then(|n: usize| list.get(n)).cloned().unwrap_or_default()
        }
        (value, key) => value[key].clone(),
    })
}

/// Returns a value as a story writes it: text without quotes.
fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn holds(text: &str, expected: &str) -> Result<(), String> {
    let found = text.lines().any(|line| line.contains(expected));
    found.then_some(()).ok_or("no line holds that".to_owned())
}

fn lacks(text: &str, unwanted: &str) -> Result<(), String> {
    if text.contains(unwanted) { Err(format!("`{unwanted}` is there")) } else { Ok(()) }
}

fn same(found: &str, expected: &str) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("it is `{found}`")) }
}

//! Typed reading of a YAML tree that collects every problem instead of stopping at the first.
//!
//! A [`Field`] is a value at a path of an object; a [`Map`] is a mapping that remembers which keys
//! were asked for, so that what is left over can be reported with the nearest known name. Readers
//! return `None` where a value is absent, and also where it is wrong: the problem is then noted.
//! Placeholders are replaced here, at the moment a value is read: one without a value is an error
//! exactly where the value matters.

mod words;

pub(super) use words::{nearest, shorten};

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use jiff::SignedDuration;

use super::duration;
use super::model::{Problem, Severity};
use super::placeholder::{self, Vars};
use super::pool::Expiry;
use super::yaml::{Entry, Node, Scalar, Value, resolve};
use crate::ids::Origin;
use crate::units::Quantity;
use words::slip_of;

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct Report(RefCell<Vec<Problem>>);

impl Report {
    /// Notes a problem.
    pub(super) fn add(&self, problem: Problem) {
        self.0.borrow_mut().push(problem);
    }

    /// Returns the problems.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.0.into_inner()
    }
}

/// One object of one file: what every field of it shares.
#[derive(Debug)]
pub(super) struct Scope<'a> {
    pub(super) report: &'a Report,
    pub(super) file: &'a Arc<str>,
    /// Name of the object in messages, such as `Deployment web/api`.
    pub(super) object: String,
    pub(super) vars: &'a Vars,
    /// Where the object was written, where that is not the text that is read.
    pub(super) written: Option<&'a Origin>,
    /// Who delivers the object, where that is more than the tree itself.
    pub(super) by: Option<&'a str>,
    /// The namespaces that whoever delivers the object gives it.
    pub(super) namespaces: Namespaces<'a>,
    /// Whether texts are meant as they stand: what a cluster holds has no placeholders any more.
    pub(super) verbatim: bool,
    /// The fields found wrong so far.
    pub(super) failed: RefCell<Vec<String>>,
}

/// The namespace of objects that name none, unless whoever delivers them says otherwise.
pub(super) const DEFAULT_NAMESPACE: &str = "default";

/// The namespaces of objects that nobody in particular delivers.
pub(super) const PLAIN: Namespaces<'static> =
    Namespaces { default: DEFAULT_NAMESPACE, target: None };

/// The namespaces that whoever delivers objects gives them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Namespaces<'a> {
    /// That of objects that name none.
    pub(super) default: &'a str,
    /// That of every object, whatever it names.
    pub(super) target: Option<&'a str>,
}

impl Namespaces<'_> {
    /// Returns the namespace of an object that names `own`.
    pub(super) fn of<'n>(&'n self, own: Option<&'n str>) -> &'n str {
        self.target.or(own).unwrap_or(self.default)
    }
}

impl Scope<'_> {
    /// Returns the first field of the object found wrong; empty for the object itself.
    pub(super) fn first_failed(&self) -> Option<String> {
        self.failed.borrow().first().cloned()
    }

    /// Returns the place `line` of the object's file.
    pub(super) fn origin(&self, line: u32) -> Origin {
        match self.written {
            Some(written) => written.clone(),
            None => Origin { file: Arc::clone(self.file), line },
        }
    }

    /// Notes a problem of the object at `line`.
    pub(super) fn note(
        &self,
        severity: Severity,
        line: u32,
        message: String,
        hint: Option<String>,
    ) {
        let (origin, object) = (self.origin(line), self.object.clone());
        self.report.add(Problem { origin, severity, object, message, hint });
    }
}

/// Where a value stands inside its object.
#[derive(Debug, Clone, Copy)]
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Debug, Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = self.parent.filter(|parent| !matches!(parent.step, Step::Root));
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match self.step {
            Step::Root => Ok(()),
            Step::Key(key) if key.contains(['.', '/']) => write!(f, "[{}]", shorten(key)),
            Step::Key(key) if parent.is_some() => write!(f, ".{}", shorten(key)),
            Step::Key(key) => write!(f, "{}", shorten(key)),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A value that is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) scope: &'a Scope<'a>,
    pub(super) node: &'a Node<'a>,
    path: Path<'a>,
}

/// A text or a number, after placeholders are replaced.
enum Read<'a> {
    Word(Cow<'a, str>),
    Text(Cow<'a, str>),
}

impl<'a> Field<'a> {
    /// Returns the root of an object.
    pub(super) fn root(scope: &'a Scope<'a>, node: &'a Node<'a>) -> Self {
        Self { scope, node, path: Path { parent: None, step: Step::Root } }
    }

    /// Returns where the value stands.
    pub(super) fn origin(&self) -> Origin {
        self.scope.origin(self.node.line)
    }

    /// Notes an error: `PATH MESSAGE`.
    pub(super) fn error(&self, message: impl fmt::Display, hint: impl Into<Option<String>>) {
        self.note(Severity::Error, message, hint);
    }

    /// Notes a warning: `PATH MESSAGE`.
    pub(super) fn warn(&self, message: impl fmt::Display, hint: impl Into<Option<String>>) {
        self.note(Severity::Warning, message, hint);
    }

    fn note(
        &self,
        severity: Severity,
        message: impl fmt::Display,
        hint: impl Into<Option<String>>,
    ) {
        let path = self.path.to_string();
        if severity == Severity::Error {
            self.scope.failed.borrow_mut().push(path.clone());
        }
        let message =
            if path.is_empty() { message.to_string() } else { format!("`{path}` {message}") };
        self.scope.note(severity, self.node.line, message, hint.into());
    }

    /// Notes that the value is of another sort than `wanted`.
    fn mismatch<T>(&self, wanted: &str) -> Option<T> {
        let found = match &self.node.value {
            Value::Tagged(tag, _) => format!("tagged `{}`", shorten(tag)),
            Value::Plain(text) if !text.is_empty() => {
                format!("`{}` ({})", shorten(text), self.node.noun())
            }
            Value::Quoted(text) => format!("the text `{}`", shorten(text)),
            Value::Plain(_) | Value::Seq(_) | Value::Map(_) => self.node.noun().to_owned(),
        };
        let hint = match (&self.node.value, wanted) {
            (Value::Plain(text), "a text") if !text.is_empty() => {
                Some(format!("quote it: \"{}\"", shorten(text)))
            }
            (Value::Quoted(text), _) if !matches!(resolve(text), Scalar::Text(_)) => {
                Some(format!("write {} without quotes", shorten(text)))
            }
            (Value::Tagged(..), _) => {
                Some("write the value itself: tags are not followed".to_owned())
            }
            (_, _) => None,
        };
        self.error(format_args!("is {found}, not {wanted}"), hint);
        None
    }

    fn read(&self, wanted: &str) -> Option<Read<'a>> {
        let (text, plain) = match &self.node.value {
            Value::Plain(text) => (text, true),
            Value::Quoted(text) => (text, false),
            Value::Seq(_) | Value::Map(_) | Value::Tagged(..) => return self.mismatch(wanted),
        };
        if self.scope.verbatim {
            let text = Cow::Borrowed(&**text);
            return Some(if plain { Read::Word(text) } else { Read::Text(text) });
        }
        if text.contains("{{") {
            let hint = "render the template first, and plan what it gives".to_owned();
            self.error(format_args!("holds the template expression `{}`", shorten(text)), hint);
            return None;
        }
        let replaced = placeholder::replace(text, self.scope.vars);
        if let Some(name) = replaced.unresolved {
            let hint =
                format!("give `{name}` a value under `vars` of the source in fleetwright.yaml");
            self.error(format_args!("needs `{}`, which has no value", shorten(&name)), hint);
            return None;
        }
        Some(if plain { Read::Word(replaced.text) } else { Read::Text(replaced.text) })
    }

    /// Reads a text. Numbers and booleans are errors, as for the API server.
    pub(super) fn text(&self) -> Option<Cow<'a, str>> {
        match self.read("a text")? {
            Read::Text(text) => Some(text),
            Read::Word(word) => match resolve(&word) {
                Scalar::Text(_) => Some(word),
                Scalar::Null => Some("".into()),
                Scalar::Bool(_) | Scalar::Int(_) | Scalar::Number(_) => self.mismatch("a text"),
            },
        }
    }

    /// Reads a text or a number, which stays as it is written.
    pub(super) fn word(&self) -> Option<Cow<'a, str>> {
        match self.read("a text or a number")? {
            Read::Text(text) => Some(text),
            Read::Word(word) => match resolve(&word) {
                Scalar::Text(_) | Scalar::Number(_) => Some(word),
                Scalar::Int(int) => Some(int.to_string().into()),
                Scalar::Null => Some("".into()),
                Scalar::Bool(_) => self.mismatch("a text or a number"),
            },
        }
    }

    /// Reads a text that is not empty.
    pub(super) fn filled(&self) -> Option<Cow<'a, str>> {
        let text = self.text()?;
        if text.trim().is_empty() {
            self.error("is empty", None);
            return None;
        }
        Some(text)
    }

    /// Reads a boolean.
    pub(super) fn boolean(&self) -> Option<bool> {
        match self.read("a boolean")? {
            Read::Text(_) => self.mismatch("a boolean"),
            Read::Word(word) => match resolve(&word) {
                Scalar::Bool(value) => Some(value),
                Scalar::Null => Some(false),
                Scalar::Int(_) | Scalar::Number(_) | Scalar::Text(_) => self.mismatch("a boolean"),
            },
        }
    }

    /// Reads an integer from `least` to the most that `T` holds.
    pub(super) fn int<T: TryFrom<i64>>(&self, least: i64) -> Option<T> {
        let int = match self.read("a whole number")? {
            Read::Text(_) => return self.mismatch("a whole number"),
            Read::Word(word) => match resolve(&word) {
                Scalar::Int(int) => int,
                // `3.0` is 3 in JSON, and in Kubernetes.
                Scalar::Number(number) => match whole(number) {
                    Some(int) => int,
                    None => return self.mismatch("a whole number"),
                },
                Scalar::Null | Scalar::Bool(_) | Scalar::Text(_) => {
                    return self.mismatch("a whole number");
                }
            },
        };
        if int < least {
            self.error(format_args!("is {int}, below {least}"), None);
            return None;
        }
        T::try_from(int).ok().or_else(|| {
            self.error(format_args!("is {int}, which is too large"), None);
            None
        })
    }

    /// Reads a quantity, which may be negative.
    pub(super) fn quantity(&self) -> Option<Quantity> {
        let text = match self.read("a quantity")? {
            Read::Text(text) => text,
            Read::Word(word) => match resolve(&word) {
                Scalar::Int(int) => return Some(Quantity::from_units(int)),
                Scalar::Number(number) => number.replace('_', "").into(),
                Scalar::Null => return Some(Quantity::from_units(0)),
                Scalar::Bool(_) => return self.mismatch("a quantity"),
                Scalar::Text(_) => word,
            },
        };
        match text.parse::<Quantity>() {
            Ok(quantity) => Some(quantity),
            Err(error) => {
                self.error(format_args!("is `{}`, not a quantity", error.text), error.hint);
                None
            }
        }
    }

    /// Reads a duration such as `1h30m`, or `Never`.
    pub(super) fn duration_or_never(&self) -> Option<Expiry> {
        let text = self.text()?;
        if text == "Never" {
            return Some(Expiry::Never);
        }
        let parsed = duration::parse(&text);
        if parsed.is_none() {
            self.error(
                format_args!("is `{}`, not a duration", shorten(&text)),
                "write it as 30s, 5m, 1h30m or 720h".to_owned(),
            );
        }
        parsed.map(Expiry::After)
    }

    /// Reads a duration such as `1h30m`.
    pub(super) fn duration(&self) -> Option<SignedDuration> {
        match self.duration_or_never()? {
            Expiry::After(duration) => Some(duration),
            Expiry::Never => {
                self.error("is `Never`, not a duration", None);
                None
            }
        }
    }

    /// Reads one of `choices`, by its spelling.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.error(
                format_args!("is `{}`, not one of {}", shorten(&text), names.join(", ")),
                nearest(&text, &names).map(|name| format!("write {name}")),
            );
        }
        found
    }

    /// Reads a mapping.
    pub(super) fn map(&self) -> Option<Map<'a>> {
        match &self.node.value {
            Value::Map(entries) => Some(Map { field: *self, entries, known: RefCell::default() }),
            Value::Plain(_) | Value::Quoted(_) | Value::Seq(_) | Value::Tagged(..) => {
                self.mismatch("a mapping")
            }
        }
    }

    /// Reads the items of a list.
    pub(super) fn items<'s>(&'s self) -> impl Iterator<Item = Field<'s>> {
        let items: &'s [Node<'s>] = match &self.node.value {
            Value::Seq(items) => items,
            Value::Plain(_) | Value::Quoted(_) | Value::Map(_) | Value::Tagged(..) => {
                self.mismatch::<()>("a list");
                &[]
            }
        };
        items.iter().enumerate().map(|(index, node)| Field {
            scope: self.scope,
            node,
            path: Path { parent: Some(&self.path), step: Step::Index(index) },
        })
    }

    /// Reads a list of texts.
    pub(super) fn texts(&self) -> Vec<String> {
        self.items().filter_map(|item| Some(item.text()?.into_owned())).collect()
    }
}

/// A mapping, and the keys that were asked for.
#[derive(Debug)]
pub(super) struct Map<'a> {
    pub(super) field: Field<'a>,
    entries: &'a [Entry<'a>],
    known: RefCell<Vec<&'static str>>,
}

impl<'a> Map<'a> {
    /// Returns the value of `key`, unless it is absent or null.
    pub(super) fn get<'s>(&'s self, key: &'static str) -> Option<Field<'s>> {
        self.known.borrow_mut().push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (!entry.value.is_null()).then(|| self.at(entry))
    }

    /// Returns the value of `key`, and notes an error where it is absent or null.
    pub(super) fn need<'s>(&'s self, key: &'static str) -> Option<Field<'s>> {
        let found = self.get(key);
        if found.is_none() {
            self.field.error(format_args!("has no `{key}`"), None);
        }
        found
    }

    /// Returns every key and value.
    pub(super) fn entries<'s>(&'s self) -> impl Iterator<Item = (&'a str, Field<'s>)> {
        self.entries.iter().map(|entry| (&*entry.key, self.at(entry)))
    }

    fn at<'s>(&'s self, entry: &'s Entry<'s>) -> Field<'s> {
        let path = Path { parent: Some(&self.field.path), step: Step::Key(&entry.key) };
        Field { scope: self.field.scope, node: &entry.value, path }
    }

    /// Marks keys as known and without meaning for capacity.
    pub(super) fn ignore(&self, keys: &[&'static str]) {
        self.known.borrow_mut().extend_from_slice(keys);
    }

    /// Notes every key that was neither asked for nor ignored.
    pub(super) fn finish(&self, severity: Severity) {
        for entry in self.unknown() {
            self.note_unknown(entry, severity);
        }
    }

    /// Notes every key that was neither asked for nor ignored: as an error where it is a slip of
    /// the pen for one that was, since what it was meant to say is then missing, else as a warning.
    pub(super) fn finish_exact(&self) {
        for entry in self.unknown() {
            let slip = slip_of(&entry.key, &self.known.borrow()).is_some();
            if slip {
                self.field.scope.failed.borrow_mut().push(self.at(entry).path.to_string());
            }
            self.note_unknown(entry, if slip { Severity::Error } else { Severity::Warning });
        }
    }

    /// Returns the entries that nobody asked for. What a cluster holds was admitted by an API
    /// server that may know more fields than this program.
    fn unknown(&self) -> impl Iterator<Item = &'a Entry<'a>> {
        let known = self.known.borrow().clone();
        let counts = !self.field.scope.verbatim;
        self.entries.iter().filter(move |entry| counts && !known.contains(&&*entry.key))
    }

    fn note_unknown(&self, entry: &Entry<'_>, severity: Severity) {
        let path = self.field.path.to_string();
        let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
        let hint = nearest(&entry.key, &self.known.borrow()).map_or_else(
            || "remove it, or see which fields this version of the API has".to_owned(),
            |name| format!("did you mean `{name}`?"),
        );
        let message = format!("unknown field `{}`{place}", shorten(&entry.key));
        self.field.scope.note(severity, entry.line, message, Some(hint));
    }
}

/// Returns the integer that `number` (digits, a point, zeros) is.
fn whole(number: &str) -> Option<i64> {
    let (whole, fraction) = number.split_once('.')?;
    fraction.bytes().all(|byte| byte == b'0').then(|| whole.parse().ok())?
}

//! Typed decoding of a YAML tree that collects every problem instead of stopping at the first.
//!
//! A [`Field`] is a value at a path of an object. A [`FieldMap`] is a mapping that records the keys
//! that were read, so that unknown keys can be reported with the nearest known name. Readers return
//! `None` for an absent value, and also for a wrong one after reporting the problem. Placeholders
//! are replaced when a value is read: one without a value is an error only where the value matters.

mod namespace_rules;
mod shortened;

pub(super) use namespace_rules::{DEFAULT_NAMESPACES, NamespaceRules};
pub(super) use shortened::shorten;

use std::borrow::Cow;
use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use jiff::SignedDuration;

use super::delivery::{DeliveryObject, SyncPolicy};
use super::placeholder::{self, Vars};
use super::yaml::{Scalar, YamlEntry, YamlNode, YamlValue, resolve};
use crate::model::code::Code;
use crate::model::desired::{Expiry, Problem, Severity};
use crate::model::duration;
use crate::model::ids::Origin;
use crate::model::similar_name::most_similar;
use crate::model::units::Quantity;

/// The problems found so far.
#[derive(Debug, Default)]
pub(super) struct ProblemCollector(RefCell<Vec<Problem>>);

impl ProblemCollector {
    /// Adds a problem.
    pub(super) fn add(&self, problem: Problem) {
        self.0.borrow_mut().push(problem);
    }

    /// Returns whether an error of an object was reported.
    pub(super) fn has_error_of(&self, object: &str) -> bool {
        let is_error =
            |problem: &Problem| problem.severity == Severity::Error && *problem.object == *object;
        self.0.borrow().iter().any(is_error)
    }

    /// Returns the problems.
    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.0.into_inner()
    }
}

/// One object of one file: the context that all its fields share.
#[derive(Debug)]
pub(super) struct ObjectContext<'a> {
    pub(super) report: &'a ProblemCollector,
    pub(super) file: &'a Arc<str>,
    /// Name of the object in messages, such as `Deployment web/api`.
    pub(super) object: String,
    pub(super) vars: &'a Vars,
    /// Source location of the object if a tool rendered the text.
    pub(super) rendered_origin: Option<&'a Origin>,
    /// The object that delivers this one, such as an Argo CD Application.
    pub(super) delivered_by: Option<&'a DeliveryObject>,
    /// Helm rendered the text.
    pub(super) is_of_chart: bool,
    /// Namespace rules of the delivery object.
    pub(super) namespaces: NamespaceRules<'a>,
    /// What the delivery tool leaves alone.
    pub(super) policy: &'a SyncPolicy,
    /// Text is literal: objects of a cluster have no placeholders.
    pub(super) verbatim: bool,
    /// Paths of the fields that could not be read.
    pub(super) failed_fields: RefCell<Vec<String>>,
}

impl ObjectContext<'_> {
    /// Returns the path of the first field that could not be read; empty for the object itself.
    pub(super) fn first_failed_field(&self) -> Option<String> {
        self.failed_fields.borrow().first().cloned()
    }

    /// Runs a reader. Returns `None` if it reports an error, and drops the problems that it reported.
    pub(super) fn attempt<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let problems = self.report.0.borrow().len();
        let failed = self.failed_fields.borrow().len();
        let read = read();
        if self.failed_fields.borrow().len() == failed {
            return Some(read);
        }
        self.failed_fields.borrow_mut().truncate(failed);
        self.report.0.borrow_mut().truncate(problems);
        None
    }

    /// Returns the origin of `line` in the object's file.
    pub(super) fn origin(&self, line: u32) -> Origin {
        match self.rendered_origin {
            Some(rendered_origin) => rendered_origin.clone(),
            None => Origin { file: Arc::clone(self.file), line },
        }
    }

    /// Reports a problem of the object at `line`.
    pub(super) fn report_problem(
        &self,
        severity: Severity,
        line: u32,
        message: String,
        hint: Option<String>,
    ) {
        self.report.add(self.problem(severity, line, message).maybe_hint(hint));
    }

    /// Returns a problem of the object at `line`.
    pub(super) fn problem(&self, severity: Severity, line: u32, message: String) -> Problem {
        Problem::new(severity, self.origin(line), self.object.clone(), message)
    }
}

/// The position of a value inside its object.
#[derive(Debug, Clone, Copy)]
struct FieldPath<'a> {
    parent: Option<&'a FieldPath<'a>>,
    step: PathStep<'a>,
}

#[derive(Debug, Clone, Copy)]
enum PathStep<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

impl fmt::Display for FieldPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = self.parent.filter(|parent| !matches!(parent.step, PathStep::Root));
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match self.step {
            PathStep::Root => Ok(()),
            PathStep::Key(key) if key.contains(['.', '/']) => write!(f, "[{}]", shorten(key)),
            PathStep::Key(key) if parent.is_some() => write!(f, ".{}", shorten(key)),
            PathStep::Key(key) => write!(f, "{}", shorten(key)),
            PathStep::Index(index) => write!(f, "[{index}]"),
        }
    }
}

/// A present value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field<'a> {
    pub(super) scope: &'a ObjectContext<'a>,
    pub(super) node: &'a YamlNode<'a>,
    path: FieldPath<'a>,
}

/// A plain or quoted scalar with placeholders replaced.
enum RawScalar<'a> {
    Plain(Cow<'a, str>),
    Quoted(Cow<'a, str>),
}

impl<'a> Field<'a> {
    /// Returns the root of an object.
    pub(super) fn root(scope: &'a ObjectContext<'a>, node: &'a YamlNode<'a>) -> Self {
        Self { scope, node, path: FieldPath { parent: None, step: PathStep::Root } }
    }

    /// Returns the origin of the value.
    pub(super) fn origin(&self) -> Origin {
        self.scope.origin(self.node.line)
    }

    /// Reports an error: `PATH MESSAGE`.
    pub(super) fn error(&self, message: impl fmt::Display, hint: impl Into<Option<String>>) {
        self.report_problem(Severity::Error, None, message, hint);
    }

    /// Reports an error with a code.
    pub(super) fn coded_error(
        &self,
        code: Code,
        message: impl fmt::Display,
        hint: impl Into<Option<String>>,
    ) {
        self.report_problem(Severity::Error, Some(code), message, hint);
    }

    /// Reports a warning: `PATH MESSAGE`.
    pub(super) fn warn(&self, message: impl fmt::Display, hint: impl Into<Option<String>>) {
        self.report_problem(Severity::Warning, None, message, hint);
    }

    pub(super) fn report_problem(
        &self,
        severity: Severity,
        code: Option<Code>,
        message: impl fmt::Display,
        hint: impl Into<Option<String>>,
    ) {
        let path = self.path.to_string();
        if severity == Severity::Error {
            self.scope.failed_fields.borrow_mut().push(path.clone());
        }
        let message =
            if path.is_empty() { message.to_string() } else { format!("`{path}` {message}") };
        let problem = self.scope.problem(severity, self.node.line, message);
        self.scope.report.add(problem.maybe_hint(hint.into()).code(code));
    }

    /// Reports that the value has another type than `expected`.
    fn type_mismatch<T>(&self, expected: &str) -> Option<T> {
        let found = match &self.node.value {
            YamlValue::Tagged(tag, _) => format!("tagged `{}`", shorten(tag)),
            YamlValue::Plain(text) if !text.is_empty() => {
                format!("`{}` ({})", shorten(text), self.node.noun())
            }
            YamlValue::Quoted(text) => format!("the string `{}`", shorten(text)),
            YamlValue::Plain(_) | YamlValue::Seq(_) | YamlValue::Map(_) => {
                self.node.noun().to_owned()
            }
        };
        let is_number = |text: &str| text.parse::<u64>().is_ok_and(|n| n.to_string() == text);
        let hint = match (&self.node.value, expected) {
            (YamlValue::Plain(text), "a duration") if is_number(text) => {
                Some(format!("add a unit: {text}s, {text}m or {text}h"))
            }
            (YamlValue::Plain(text), "a string") if !text.is_empty() => {
                Some(format!("quote it: \"{}\"", shorten(text)))
            }
            (YamlValue::Quoted(text), _) if !matches!(resolve(text), Scalar::Text(_)) => {
                Some(format!("write {} without quotes", shorten(text)))
            }
            (YamlValue::Tagged(..), _) => {
                Some("write the value itself: tags are not followed".to_owned())
            }
            (_, _) => None,
        };
        self.coded_error(Code::WrongType, format_args!("is {found}, not {expected}"), hint);
        None
    }

    fn read_scalar(&self, expected: &str) -> Option<RawScalar<'a>> {
        let (text, plain) = match &self.node.value {
            YamlValue::Plain(text) => (text, true),
            YamlValue::Quoted(text) => (text, false),
            YamlValue::Seq(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => {
                return self.type_mismatch(expected);
            }
        };
        if self.scope.verbatim {
            let text = Cow::Borrowed(&**text);
            return Some(if plain { RawScalar::Plain(text) } else { RawScalar::Quoted(text) });
        }
        if text.contains("{{") {
            let hint = "render the template first, and plan its output".to_owned();
            let message = format_args!("contains the template expression `{}`", shorten(text));
            self.coded_error(Code::TemplateNotRendered, message, hint);
            return None;
        }
        let replaced = placeholder::substitute(text, self.scope.vars);
        if let Some(unresolved) = replaced.unresolved {
            let (message, hint) = placeholder::unresolved_problem(&unresolved);
            self.coded_error(Code::PlaceholderUnresolved, message, hint);
            return None;
        }
        if let Some(name) = placeholder::open_name(&replaced.text) {
            if placeholder::unread_source(self.scope.vars).is_none() {
                let hint =
                    format!("list `{}` under `delivery.vars` in fleetwright.yaml", shorten(name));
                let message = format_args!("needs `{}`, which has no value", shorten(name));
                self.coded_error(Code::PlaceholderUnresolved, message, hint);
                return None;
            }
            // Not an error: the reader of the object reports what is unresolved.
            self.scope.failed_fields.borrow_mut().push(self.path.to_string());
            return None;
        }
        let text = placeholder::substitute_names(replaced.text, self.scope.vars);
        Some(if plain { RawScalar::Plain(text) } else { RawScalar::Quoted(text) })
    }

    /// Reads a shell script. Its variables look like placeholders, so those without a value stay as
    /// they are.
    pub(super) fn script(&self) -> Option<Cow<'a, str>> {
        match &self.node.value {
            YamlValue::Plain(text) | YamlValue::Quoted(text) if !self.scope.verbatim => {
                Some(placeholder::substitute(text, self.scope.vars).text)
            }
            YamlValue::Plain(_)
            | YamlValue::Quoted(_)
            | YamlValue::Seq(_)
            | YamlValue::Map(_)
            | YamlValue::Tagged(..) => self.text(),
        }
    }

    /// Reads a string. Numbers and booleans are errors, as for the API server.
    pub(super) fn text(&self) -> Option<Cow<'a, str>> {
        match self.read_scalar("a string")? {
            RawScalar::Quoted(text) => Some(text),
            RawScalar::Plain(word) => match resolve(&word) {
                Scalar::Text(_) => Some(word),
                Scalar::Null => Some("".into()),
                Scalar::Bool(_) | Scalar::Int(_) | Scalar::Number(_) => {
                    self.type_mismatch("a string")
                }
            },
        }
    }

    /// Reads a string or a number, as written.
    pub(super) fn text_or_number(&self) -> Option<Cow<'a, str>> {
        match self.read_scalar("a string or a number")? {
            RawScalar::Quoted(text) => Some(text),
            RawScalar::Plain(word) => match resolve(&word) {
                Scalar::Text(_) | Scalar::Number(_) => Some(word),
                Scalar::Int(int) => Some(int.to_string().into()),
                Scalar::Null => Some("".into()),
                Scalar::Bool(_) => self.type_mismatch("a string or a number"),
            },
        }
    }

    /// Reads a string that is not empty.
    pub(super) fn non_empty_text(&self) -> Option<Cow<'a, str>> {
        let text = self.text()?;
        if text.trim().is_empty() {
            self.error("is empty", None);
            return None;
        }
        Some(text)
    }

    /// Reads a boolean.
    pub(super) fn boolean(&self) -> Option<bool> {
        match self.read_scalar("a boolean")? {
            RawScalar::Quoted(_) => self.type_mismatch("a boolean"),
            RawScalar::Plain(word) => match resolve(&word) {
                Scalar::Bool(value) => Some(value),
                Scalar::Null => Some(false),
                Scalar::Int(_) | Scalar::Number(_) | Scalar::Text(_) => {
                    self.type_mismatch("a boolean")
                }
            },
        }
    }

    /// Reads an integer from `least` to the maximum of `T`.
    pub(super) fn int<T: TryFrom<i64>>(&self, least: i64) -> Option<T> {
        let int = match self.read_scalar("a whole number")? {
            RawScalar::Quoted(_) => return self.type_mismatch("a whole number"),
            RawScalar::Plain(word) => match resolve(&word) {
                Scalar::Int(int) => int,
                // `3.0` is 3 in JSON and in Kubernetes.
                Scalar::Number(number) => match parse_integral(number) {
                    Some(int) => int,
                    None => return self.type_mismatch("a whole number"),
                },
                Scalar::Null | Scalar::Bool(_) | Scalar::Text(_) => {
                    return self.type_mismatch("a whole number");
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
        let text = match self.read_scalar("a quantity")? {
            RawScalar::Quoted(text) => text,
            RawScalar::Plain(word) => match resolve(&word) {
                Scalar::Int(int) => return Some(Quantity::from_units(int)),
                Scalar::Number(number) => number.replace('_', "").into(),
                Scalar::Null => return Some(Quantity::from_units(0)),
                Scalar::Bool(_) => return self.type_mismatch("a quantity"),
                Scalar::Text(_) => word,
            },
        };
        match text.parse::<Quantity>() {
            Ok(quantity) => Some(quantity),
            Err(error) => {
                let message = format_args!("is `{}`, not a quantity", error.text);
                self.coded_error(Code::InvalidQuantity, message, error.hint);
                None
            }
        }
    }

    /// Reads a duration such as `1h30m`, or `Never`.
    pub(super) fn duration_or_never(&self) -> Option<Expiry> {
        if matches!(&self.node.value, YamlValue::Plain(text) if resolve(text).is_number()) {
            return self.type_mismatch("a duration");
        }
        let text = self.text()?;
        if text == "Never" {
            return Some(Expiry::Never);
        }
        let parsed = duration::parse(&text);
        if parsed.is_none() {
            self.coded_error(
                Code::InvalidDuration,
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
                self.coded_error(Code::InvalidDuration, "is `Never`, not a duration", None);
                None
            }
        }
    }

    /// Reads one of `choices`, by name.
    pub(super) fn choice<T: Copy>(&self, choices: &[(&'static str, T)]) -> Option<T> {
        let text = self.text()?;
        let found = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            self.coded_error(
                Code::InvalidChoice,
                format_args!("is `{}`, not one of {}", shorten(&text), names.join(", ")),
                most_similar(&text, &names).map(|name| format!("write {name}")),
            );
        }
        found
    }

    /// Reads a mapping.
    pub(super) fn map(&self) -> Option<FieldMap<'a>> {
        match &self.node.value {
            YamlValue::Map(entries) => {
                Some(FieldMap { field: *self, entries, known_keys: RefCell::default() })
            }
            YamlValue::Plain(_)
            | YamlValue::Quoted(_)
            | YamlValue::Seq(_)
            | YamlValue::Tagged(..) => self.type_mismatch("a mapping"),
        }
    }

    /// Reads the items of a list.
    pub(super) fn items<'s>(&'s self) -> impl Iterator<Item = Field<'s>> {
        let items: &'s [YamlNode<'s>] = match &self.node.value {
            YamlValue::Seq(items) => items,
            YamlValue::Plain(_)
            | YamlValue::Quoted(_)
            | YamlValue::Map(_)
            | YamlValue::Tagged(..) => {
                self.type_mismatch::<()>("a list");
                &[]
            }
        };
        items.iter().enumerate().map(|(index, node)| Field {
            scope: self.scope,
            node,
            path: FieldPath { parent: Some(&self.path), step: PathStep::Index(index) },
        })
    }

    /// Reads a list of strings.
    pub(super) fn text_list(&self) -> Vec<String> {
        self.items().filter_map(|item| Some(item.text()?.into_owned())).collect()
    }
}

/// A mapping, and the keys that were read.
#[derive(Debug)]
pub(super) struct FieldMap<'a> {
    pub(super) field: Field<'a>,
    entries: &'a [YamlEntry<'a>],
    known_keys: RefCell<Vec<&'static str>>,
}

impl<'a> FieldMap<'a> {
    /// Returns the value of `key`, unless it is absent or null.
    pub(super) fn get<'s>(&'s self, key: &'static str) -> Option<Field<'s>> {
        self.known_keys.borrow_mut().push(key);
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (!entry.value.is_null()).then(|| self.field_of(entry))
    }

    /// Returns the value of `key`. Its `former` name is still read, with a warning. Both at once are
    /// an error.
    pub(super) fn get_renamed<'s>(
        &'s self,
        key: &'static str,
        former: &'static str,
    ) -> Option<Field<'s>> {
        let current = self.get(key);
        let Some(entry) = self.entries.iter().find(|entry| entry.key == former) else {
            return current;
        };
        self.known_keys.borrow_mut().push(former);
        let old = self.field_of(entry);
        if self.entries.iter().any(|entry| entry.key == key) {
            old.error(format_args!("is the former name of `{key}`, which is set too"), None);
            return current;
        }
        old.report_problem(
            Severity::Warning,
            Some(Code::FieldRenamed),
            format_args!("is the former name of `{key}`"),
            format!("rename it to `{key}`: a later version no longer reads `{former}`"),
        );
        (!entry.value.is_null()).then_some(old)
    }

    /// Returns the value of `key`, and reports an error if it is absent or null.
    pub(super) fn required<'s>(&'s self, key: &'static str) -> Option<Field<'s>> {
        let found = self.get(key);
        if found.is_none() {
            self.field.coded_error(Code::FieldMissing, format_args!("has no `{key}`"), None);
        }
        found
    }

    /// Returns every key and value.
    pub(super) fn entries<'s>(&'s self) -> impl Iterator<Item = (&'a str, Field<'s>)> {
        self.entries.iter().map(|entry| (&*entry.key, self.field_of(entry)))
    }

    fn field_of<'s>(&'s self, entry: &'s YamlEntry<'s>) -> Field<'s> {
        let path = FieldPath { parent: Some(&self.field.path), step: PathStep::Key(&entry.key) };
        Field { scope: self.field.scope, node: &entry.value, path }
    }

    /// Marks keys as known but irrelevant for capacity.
    pub(super) fn ignore(&self, keys: &[&'static str]) {
        self.known_keys.borrow_mut().extend_from_slice(keys);
    }

    /// Reports every key that was neither read nor ignored.
    pub(super) fn finish(&self, severity: Severity) {
        for entry in self.unknown_entries() {
            self.report_unknown(entry, severity);
        }
    }

    /// Reports every key that was neither read nor ignored. A likely typo of a known key is an
    /// error, because the intended value is missing; others are warnings.
    pub(super) fn finish_with_typo_check(&self) {
        for entry in self.unknown_entries() {
            let is_typo = most_similar(&entry.key, &self.known_keys.borrow()).is_some();
            if is_typo {
                self.field
                    .scope
                    .failed_fields
                    .borrow_mut()
                    .push(self.field_of(entry).path.to_string());
            }
            self.report_unknown(entry, if is_typo { Severity::Error } else { Severity::Warning });
        }
    }

    /// Returns the entries that were not read. Objects of a cluster have none: the API server has
    /// validated them, and may know more fields than this program.
    fn unknown_entries(&self) -> impl Iterator<Item = &'a YamlEntry<'a>> {
        let known = self.known_keys.borrow().clone();
        let counts = !self.field.scope.verbatim;
        self.entries.iter().filter(move |entry| counts && !known.contains(&&*entry.key))
    }

    fn report_unknown(&self, entry: &YamlEntry<'_>, severity: Severity) {
        let path = self.field.path.to_string();
        let place = if path.is_empty() { String::new() } else { format!(" in `{path}`") };
        let hint = most_similar(&entry.key, &self.known_keys.borrow()).map_or_else(
            || "remove it, or see which fields this version of the API has".to_owned(),
            |name| format!("did you mean `{name}`?"),
        );
        let message = format!("unknown field `{}`{place}", shorten(&entry.key));
        let problem = self.field.scope.problem(severity, entry.line, message);
        self.field.scope.report.add(problem.hint(hint).code(Code::UnknownField));
    }
}

/// Returns the integer that `number` (digits, a point, zeros) stands for.
fn parse_integral(number: &str) -> Option<i64> {
    let (whole, fraction) = number.split_once('.')?;
    fraction.bytes().all(|byte| byte == b'0').then(|| whole.parse().ok())?
}

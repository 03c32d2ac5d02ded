//! What files of Rego declare: packages, the rules that conventions know, tests.
//!
//! Everything here comes from the parser of the engine that runs the rules, never from the text, so
//! that a rule that is run and one that is found are the same. Invariant: a file that would do nothing
//! is an error, since a guard that is misspelt guards nothing.

use std::collections::{BTreeMap, BTreeSet};

use regorus::unstable::{Expr, Module, Rule, RuleHead};

/// A file of policies or of their data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyFile {
    /// Its path, as messages name it.
    pub path: String,
    /// Its content.
    pub text: String,
}

/// What a package declares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Package {
    /// Rules that judge: `deny`, `violation` and `warn`, with their suffixes.
    pub(super) rules: BTreeSet<String>,
    /// Rules that test: `test_…`.
    pub(super) tests: BTreeSet<String>,
    /// Whether there is an `exception`.
    pub(super) has_exceptions: bool,
}

const JUDGES: [&str; 3] = ["deny", "violation", "warn"];

/// What one file declares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Declared {
    /// Its package, as paths write it.
    package: String,
    /// The names of all of its rules.
    names: BTreeSet<String>,
}

impl Declared {
    /// Returns what a parsed file declares.
    ///
    /// # Errors
    /// When its package is not named plainly, so that no path leads to its rules.
    pub(super) fn of(module: &Module) -> Result<Self, String> {
        let package = plain(&module.package.refr)?;
        let names = module.policy.iter().map(|rule| first(head(rule))).collect();
        Ok(Self { package, names })
    }

    fn is_rule(name: &str) -> bool {
        JUDGES.contains(&name.split('_').next().unwrap_or_default())
    }

    fn is_test(name: &str) -> bool {
        name.starts_with("test_")
    }

    /// Returns whether the file itself is run for something.
    fn is_run(&self) -> bool {
        self.names.iter().any(|name| Self::is_rule(name) || Self::is_test(name))
    }
}

/// Returns what a rule is named by.
fn head(rule: &Rule) -> &Expr {
    match rule {
        Rule::Spec { head, .. } => match head {
            RuleHead::Compr { refr, .. }
            | RuleHead::Set { refr, .. }
            | RuleHead::Func { refr, .. } => refr,
        },
        Rule::Default { refr, .. } => refr,
    }
}

/// Returns the first part of a reference: `deny` of `deny.spot` and of `deny["spot"]`.
fn first(reference: &Expr) -> String {
    let text = reference.span().text();
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().into()
}

fn plain(reference: &Expr) -> Result<String, String> {
    let text = reference.span().text();
    let is_plain = |part: &str| {
        let mut chars = part.chars();
        let begins = chars.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_');
        begins && chars.all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if text.split('.').all(is_plain) {
        return Ok(text.to_owned());
    }
    Err("name its package by plain words with dots between them, such as `main.budget`".to_owned())
}

/// Returns the packages by name, with the rules that conventions know.
pub(super) fn packages(files: &[Declared]) -> BTreeMap<String, Package> {
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for Declared { package, names } in files {
        let package = packages.entry(package.clone()).or_default();
        package.has_exceptions |= names.contains("exception");
        let of = |known: fn(&str) -> bool| names.iter().filter(move |name| known(name)).cloned();
        package.rules.extend(of(Declared::is_rule));
        package.tests.extend(of(Declared::is_test));
    }
    packages
}

/// Returns the files that nothing would ever run: without a rule or a test of their own, and of a
/// package that no rule is in and no other file names. `declared` is in the order of `files`.
pub(super) fn idle<'f>(files: &'f [PolicyFile], declared: &[Declared]) -> Vec<&'f PolicyFile> {
    let both = || files.iter().zip(declared);
    let is_idle = |(file, own): &(&PolicyFile, &Declared)| {
        let name = format!("data.{}", own.package);
        let beside = |(other, its): (&PolicyFile, &Declared)| {
            other.path != file.path
                && its.is_run()
                && (its.package == own.package || other.text.contains(&name))
        };
        !own.is_run() && !both().any(beside)
    };
    both().filter(is_idle).map(|(file, _)| file).collect()
}

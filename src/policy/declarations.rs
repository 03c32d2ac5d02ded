//! Declarations in Rego files: packages, conventional rules, and tests.
//!
//! The parser of the engine provides the declarations, so that detected and evaluated rules are the
//! same. Invariant: a file without effect is an error, because a misspelled guard protects nothing.

use std::collections::{BTreeMap, BTreeSet};

use regorus::unstable::{Expr, Module, Rule, RuleHead};

use super::PolicyFile;

/// Declarations of a package.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Package {
    /// Conventional rules: `deny`, `violation` and `warn`, with their suffixes.
    pub(super) rules: BTreeSet<String>,
    /// Test rules: `test_…`.
    pub(super) tests: BTreeSet<String>,
    /// True if the package has an `exception` rule.
    pub(super) has_exceptions: bool,
}

const RULE_KINDS: [&str; 3] = ["deny", "violation", "warn"];

/// Declarations of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FileDeclarations {
    /// Path of the package.
    package: String,
    /// Names of all rules.
    names: BTreeSet<String>,
}

impl FileDeclarations {
    /// Reads the declarations of a parsed file.
    ///
    /// # Errors
    /// When the package name is not a plain path, so that its rules cannot be addressed.
    pub(super) fn from_module(module: &Module) -> Result<Self, String> {
        let package = plain_path(&module.package.refr)?;
        let names = module.policy.iter().map(|rule| first_segment(rule_reference(rule))).collect();
        Ok(Self { package, names })
    }

    /// Returns the path of the package.
    pub(super) fn package(&self) -> &str {
        &self.package
    }

    fn is_rule(name: &str) -> bool {
        RULE_KINDS.contains(&name.split('_').next().unwrap_or_default())
    }

    fn is_test(name: &str) -> bool {
        name.starts_with("test_")
    }

    /// Returns true if the file has a conventional rule or a test.
    fn is_evaluated(&self) -> bool {
        self.names.iter().any(|name| Self::is_rule(name) || Self::is_test(name))
    }
}

/// Returns the reference to the name of a rule.
fn rule_reference(rule: &Rule) -> &Expr {
    match rule {
        Rule::Spec { head, .. } => match head {
            RuleHead::Compr { refr, .. }
            | RuleHead::Set { refr, .. }
            | RuleHead::Func { refr, .. } => refr,
        },
        Rule::Default { refr, .. } => refr,
    }
}

/// Returns the first segment of a reference: `deny` for `deny.spot` and for `deny["spot"]`.
fn first_segment(reference: &Expr) -> String {
    let text = reference.span().text();
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or_default().into()
}

fn plain_path(reference: &Expr) -> Result<String, String> {
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

/// Returns the packages by name, with their conventional rules.
pub(super) fn collect_packages(files: &[FileDeclarations]) -> BTreeMap<String, Package> {
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for FileDeclarations { package, names } in files {
        let package = packages.entry(package.clone()).or_default();
        package.has_exceptions |= names.contains("exception");
        let matching =
            |known: fn(&str) -> bool| names.iter().filter(move |name| known(name)).cloned();
        package.rules.extend(matching(FileDeclarations::is_rule));
        package.tests.extend(matching(FileDeclarations::is_test));
    }
    packages
}

/// Returns the files that are never evaluated. Such a file has no conventional rule or test, and no
/// other evaluated file shares or names its package. `declared` must have the order of `files`.
pub(super) fn unused_files<'f>(
    files: &'f [PolicyFile],
    declared: &[FileDeclarations],
) -> Vec<&'f PolicyFile> {
    let both = || files.iter().zip(declared);
    let is_idle = |(file, own): &(&PolicyFile, &FileDeclarations)| {
        let name = format!("data.{}", own.package);
        let beside = |(other, its): (&PolicyFile, &FileDeclarations)| {
            other.path != file.path
                && its.is_evaluated()
                && (its.package == own.package || other.text.contains(&name))
        };
        !own.is_evaluated() && !both().any(beside)
    };
    both().filter(is_idle).map(|(file, _)| file).collect()
}

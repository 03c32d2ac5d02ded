//! What a file of Rego declares, as far as conventions go by names.

use std::collections::{BTreeMap, BTreeSet};

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
pub struct Package {
    /// Rules that judge: `deny`, `violation` and `warn`, with their suffixes.
    pub rules: BTreeSet<String>,
    /// Rules that test: `test_…`.
    pub tests: BTreeSet<String>,
    /// Whether there is an `exception`.
    pub has_exceptions: bool,
}

const JUDGES: [&str; 3] = ["deny", "violation", "warn"];

/// Returns the packages of `files` by name, with the rules that conventions know.
pub(super) fn packages(files: &[PolicyFile]) -> BTreeMap<String, Package> {
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for file in files {
        let Some(name) = package_of(&file.text) else { continue };
        let package = packages.entry(name).or_default();
        for head in file.text.lines().filter_map(rule_name) {
            let kind = head.split('_').next().unwrap_or_default();
            if head.starts_with("test_") {
                package.tests.insert(head.to_owned());
            } else if head == "exception" {
                package.has_exceptions = true;
            } else if JUDGES.contains(&kind) {
                package.rules.insert(head.to_owned());
            }
        }
    }
    packages
}

fn package_of(text: &str) -> Option<String> {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix("package "))?;
    let name: String = line
        .trim()
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || "._".contains(*c))
        .collect();
    (!name.is_empty()).then_some(name)
}

/// Returns the name of the rule that a line begins; formatted Rego has rules in the first column.
fn rule_name(line: &str) -> Option<&str> {
    let end = line.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    let begins = rest.trim_start();
    let is_rule = begins.is_empty()
        || [" contains ", " if ", " := ", " = "].iter().any(|word| rest.starts_with(word))
        || begins.starts_with(['[', '{', '('])
        || begins.starts_with("if {");
    (!name.is_empty() && is_rule).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_known_by_their_names_in_either_version_of_rego() {
        let text = "# deny\npackage main.budget\n\nimport rego.v1\n\ndeny contains msg if {\n  warn := 1\n}\n\
                    deny_spot[msg] {\n}\nviolation[{\"msg\": m}] {\n}\nwarn_x contains m if { m := 1 }\n\
                    exception[rules] {\n}\ntest_a if {\n}\nother := 1\ndenial := 2\n";
        let found = packages(&[PolicyFile { path: "a.rego".into(), text: text.into() }]);
        let package = &found["main.budget"];
        let rules: Vec<&str> = package.rules.iter().map(String::as_str).collect();
        assert_eq!(rules, ["deny", "deny_spot", "violation", "warn_x"]);
        assert_eq!(package.tests.len(), 1);
        assert!(package.has_exceptions);
    }
}

//! The page of Karpenter's features: each row has a verdict, and names tests that exist.

use std::collections::BTreeSet;
use std::fs;

use super::threat_model::{rows, tests};
use super::{pages_below, read, root};

const PAGE: &str = "docs/src/reference/karpenter-features.md";

const HEAD: &str = "| feature | Karpenter 1.13 | Fleetwright | test |";

const VERDICTS: [&str; 3] = ["same", "differs: ", "not supported"];

/// Returns whether the file of a module has a function, such as `model::pod::tests::name`. The
/// modules of the second test binary have the prefix `it`.
fn has_function(path: &str) -> bool {
    let Some((module, name)) = path.rsplit_once("::") else { return false };
    let modules = [module, module.strip_suffix("::tests").unwrap_or(module)];
    modules.iter().any(|module| {
        let below = if module.starts_with("it::") { "tests" } else { "src" };
        let file = root().join(below).join(module.replace("::", "/")).with_extension("rs");
        fs::read_to_string(file).is_ok_and(|text| text.contains(&format!("fn {name}(")))
    })
}

/// Returns the rules of the conformance suite, such as `Karpenter 5`.
fn rules() -> BTreeSet<String> {
    let pages: Vec<String> = pages_below("tests/it/conformance").iter().map(|p| read(p)).collect();
    let headings = pages.iter().flat_map(|page| page.split("\n## ").skip(1));
    let sources = headings.filter_map(|section| section.lines().nth(1));
    sources.flat_map(|line| line.split(", ").map(str::to_owned)).collect()
}

#[test]
fn karpenter_features_name_existing_tests() {
    let (page, tests, rules) = (read(PAGE), tests(), rules());
    let rows = rows(&page, HEAD);
    assert!(rows.len() > 200 && rules.len() > 50, "{} rows, {rules:?}", rows.len());
    for row in &rows {
        let [feature, _, ours, shown_by] = row[..] else { panic!("four cells: {row:?}") };
        assert!(VERDICTS.iter().any(|verdict| ours.starts_with(verdict)), "{feature}: {ours}");
        let names: Vec<&str> = shown_by.split('`').skip(1).step_by(2).collect();
        assert_eq!(names.is_empty(), shown_by == "no test", "{feature}: {shown_by}");
        for name in names {
            let is_script =
                std::path::Path::new(name).extension().is_some_and(|ending| ending == "txt")
                    && root().join("tests/it/scripts").join(name).is_file();
            let function = name.rsplit("::").next().unwrap_or_default();
            let is_test = tests.contains(function) && has_function(name);
            assert!(is_script || is_test || rules.contains(name), "{feature}: no test `{name}`");
        }
    }
    assert!(!has_function("manifest::tests::pools::no_such_test"));
}

//! Mistakes in the settings that are easy to make: each has a message of its own.

use super::super::decode::{Field, FieldMap, ProblemCollector, shorten};
use crate::model::code::Code;
use crate::model::desired::{FLEET_FILE, Problem, Tree};
use crate::model::ids::Origin;
use crate::model::similar_name::most_similar;

/// Keys of `spec`, in the order of the schema.
const SPEC_KEYS: [&str; 22] = [
    "cluster",
    "sources",
    "wholeRepository",
    "unresolved",
    "pools",
    "signers",
    "delivery",
    "demand",
    "world",
    "policies",
    "consolidation",
    "autoscalers",
    "scheduler",
    "karpenter",
    "placement",
    "spot",
    "failureDomains",
    "groups",
    "fargate",
    "cost",
    "apply",
    "controller",
];

/// Reports keys of `spec` at the root of the file.
pub(super) fn report_misplaced_keys(root: &FieldMap<'_>) {
    let is_there = |key: &&str| root.entries().any(|(name, _)| name == *key);
    for key in SPEC_KEYS.into_iter().filter(is_there) {
        if let Some(field) = root.get(key) {
            field.error("belongs below `spec`", "move it there".to_owned());
        }
    }
}

/// Reports settings in a file that is not read, because its name ends otherwise.
pub(super) fn report_misnamed_file(tree: &Tree, report: &ProblemCollector) {
    const MISNAMED: &str = "fleetwright.yml";
    if let Some(file) = tree.files.iter().find(|file| &*file.path == MISNAMED) {
        let origin = Origin { file: file.path.clone(), line: 0 };
        let problem = Problem::error(origin, "Fleet", "is not read: settings have another name");
        report.add(problem.hint(format!("rename it to {FLEET_FILE}")));
    }
}

/// Reads a world. A word that is almost `live` or `empty` is a typo: a file of such a name has the
/// prefix `file:`.
pub(super) fn read_world(field: &Field<'_>) -> Option<String> {
    const WORDS: [&str; 2] = ["live", "empty"];
    let text = field.non_empty_text()?;
    let is_file = text.contains([':', '.', '/']) || WORDS.iter().any(|word| *word == &*text);
    if let Some(word) = most_similar(&text, &WORDS).filter(|_| !is_file) {
        let found = shorten(&text);
        field.coded_error(
            Code::InvalidChoice,
            format_args!("is `{found}`, not a world"),
            format!("write {word}, or file:{found} for a file of this name"),
        );
        return None;
    }
    Some(text.into_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::Value as Json;

    use super::*;
    use crate::manifest::read_fleet;
    use crate::model::desired::TreeFile;

    fn problems(path: &str, text: &str) -> Vec<String> {
        let file = TreeFile { path: path.into(), content: Ok(text.as_bytes().into()) };
        let problems = read_fleet(&Tree { files: vec![file] }).1;
        let line = |one: Problem| format!("{}; {}", one.message, one.hint.unwrap_or_default());
        problems.into_iter().map(line).collect()
    }

    fn in_settings(rest: &str) -> Vec<String> {
        let text = format!("apiVersion: fleetwright.dev/v1\nkind: Fleet\n{rest}\n");
        problems("fleetwright.yaml", &text)
    }

    #[test]
    fn keys_are_those_of_the_schema() {
        let text = include_str!("../../../plans/fleet.schema.json");
        let schema: Json = serde_json::from_str(text).expect("JSON");
        let keys = schema["properties"]["spec"]["properties"].as_object().expect("keys");
        let mut wanted: Vec<&str> = keys.keys().map(String::as_str).collect();
        let mut keys = SPEC_KEYS;
        wanted.sort_unstable();
        keys.sort_unstable();
        assert_eq!(keys[..], wanted[..]);
    }

    #[test]
    fn each_mistake_names_its_remedy() {
        for (found, wanted) in [
            (in_settings("cluster: {name: x}"), "`cluster` belongs below `spec`; move it there"),
            (
                in_settings("spec: {world: lve}"),
                "`spec.world` is `lve`, not a world; write live, or file:lve for a file of this name",
            ),
            (
                in_settings("spec: {controller: {settle: 15}}"),
                "`spec.controller.settle` is `15` (a number), not a duration; add a unit: 15s, 15m \
                 or 15h",
            ),
            (
                problems("fleetwright.yml", "kind: Fleet"),
                "is not read: settings have another name; rename it to fleetwright.yaml",
            ),
            (
                problems("fleetwright.yaml", ""),
                "is empty; write the settings: fleetwright init --force; or remove the file",
            ),
        ] {
            assert_eq!(found, [wanted]);
        }
        for settle in ["0x10", "15.5", "99999999999999999999999999999999999999999999999999999"] {
            let found = in_settings(&format!("spec: {{controller: {{settle: {settle}}}}}"));
            assert!(!found.is_empty(), "{settle}");
            assert!(found.iter().all(|one| !one.contains("add a unit")), "{found:?}");
        }
        for world in ["live", "empty", "file:lve", "lve.json", "worlds/lve", "prod"] {
            assert_eq!(in_settings(&format!("spec: {{world: \"{world}\"}}")), [""; 0], "{world}");
        }
    }
}

//! Checks `.pre-commit-hooks.yaml`, and runs its entries.

use std::path::Path;

use serde_json::Value as Json;

use crate::binary::Workspace;

fn hooks() -> Vec<Json> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(".pre-commit-hooks.yaml");
    serde_saphyr::from_str(&std::fs::read_to_string(path).expect("readable")).expect("YAML")
}

#[test]
fn hooks_have_the_keys_that_pre_commit_requires() {
    let hooks = hooks();
    let ids: Vec<&str> = hooks.iter().filter_map(|hook| hook["id"].as_str()).collect();
    assert_eq!(ids, ["fleetwright-validate", "fleetwright-plan"]);
    for hook in &hooks {
        for key in ["name", "description", "entry", "language", "files"] {
            assert!(hook[key].is_string(), "{key} of {hook}");
        }
        assert_eq!(hook["pass_filenames"], false, "a part of the files is no plan: {hook}");
    }
}

#[test]
fn entries_of_hooks_run() {
    for hook in hooks() {
        let entry = hook["entry"].as_str().expect("a command");
        let words: Vec<&str> = entry.split(' ').collect();
        let (program, arguments) = words.split_first().expect("a program");
        assert_eq!(*program, "fleetwright");
        let good = Workspace::example("quickstart");
        let ran = good.run(arguments);
        assert_eq!(ran.code, Some(0), "{entry}: {}{}", ran.out, ran.err);
        std::fs::write(good.root().join("apps/broken.yaml"), "apiVersion: v1\nkind: [\n")
            .expect("written");
        let ran = good.run(arguments);
        assert_eq!(ran.code, Some(1), "{entry}: {}{}", ran.out, ran.err);
    }
}

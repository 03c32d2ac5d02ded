//! Objects of a running cluster, read by the readers of files.
//!
//! A pod that runs and a template in Git must mean the same to the planner, so one reader serves
//! both. What differs: the API server has checked such an object and filled in its defaults, so
//! that a field this program does not know is no slip of a pen and is passed over; and what stands
//! there is meant as it stands, `${…}` included.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::Value as Json;

use super::classify::{Class, classify};
use super::collect::Collected;
use super::decode::{Field, PLAIN, Report, Scope};
use super::meta::{meta, shown};
use super::model::{Desired, Severity};
use super::placeholder::Vars;
use super::read::read_object;
use super::yaml::{Entry, Node, Value};

/// Reads objects as an API server returns them, each with its `apiVersion` and `kind`.
///
/// Of problems only errors are kept: such an object was not read whole. A workload with an error is
/// among the unresolved, as with files.
#[must_use]
pub fn read_live<'a>(objects: impl IntoIterator<Item = &'a Json>) -> Desired {
    let report = Report::default();
    let (file, vars) = (Arc::from("cluster"), Vars::new());
    let mut into = Collected::default();
    for object in objects {
        let root = node(object);
        let Class::Object(class) = classify(&root) else { continue };
        let kind = root.get("kind").and_then(Node::text).unwrap_or_default();
        let scope = Scope {
            report: &report,
            file: &file,
            object: shown(kind, &root, class.place(), PLAIN),
            vars: &vars,
            written: None,
            by: None,
            namespaces: PLAIN,
            verbatim: true,
            failed: RefCell::default(),
        };
        if let Some(map) = Field::root(&scope, &root).map()
            && let Some(meta) = meta(&map)
        {
            read_object(class, meta, &map, &mut into);
        }
    }
    let mut desired = into.into_desired();
    desired.problems = report.into_problems();
    desired.problems.retain(|problem| problem.severity == Severity::Error);
    desired.problems.sort();
    desired.problems.dedup();
    desired
}

/// Converts a JSON value; it came from nowhere in particular, so that its lines are 0.
fn node(value: &Json) -> Node<'_> {
    let value = match value {
        Json::Null => Value::Plain("null".into()),
        Json::Bool(value) => Value::Plain(if *value { "true" } else { "false" }.into()),
        Json::Number(number) => Value::Plain(number.to_string().into()),
        Json::String(text) => Value::Quoted(text.as_str().into()),
        Json::Array(items) => Value::Seq(items.iter().map(node).collect()),
        Json::Object(entries) => Value::Map(
            entries
                .iter()
                .map(|(key, value)| Entry { key: key.as_str().into(), line: 0, value: node(value) })
                .collect(),
        ),
    };
    Node { line: 0, value }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::WorkloadKind;
    use crate::manifest::{Scale, Tree, TreeFile, read};

    fn deployment() -> Json {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "api", "namespace": "web", "uid": "u", "generation": 4 },
            "spec": {
                "replicas": 3, "revisionHistoryLimit": 10,
                "selector": { "matchLabels": { "app": "api" } },
                "template": {
                    "metadata": { "labels": { "app": "api" }, "creationTimestamp": null },
                    "spec": {
                        "containers": [{
                            "name": "api", "image": "api:1",
                            "resources": { "requests": { "cpu": "500m", "memory": "1Gi" } }
                        }],
                        "nodeSelector": { "tier": "web" }
                    }
                }
            },
            "status": { "replicas": 3 }
        })
    }

    #[test]
    fn an_object_of_a_cluster_and_one_of_a_file_become_the_same() {
        let object = deployment();
        let live = read_live([&object]);
        let content = Ok(object.to_string().into_bytes().into());
        let tree = Tree { files: vec![TreeFile { path: "api.json".into(), content }] };
        let declared = read(&tree, &crate::manifest::Fleet::default());
        assert_eq!(live.problems, []);
        let (live, declared): (Vec<_>, Vec<_>) =
            (live.workloads.into_values().collect(), declared.workloads.into_values().collect());
        assert_eq!(live.len(), 1);
        assert_eq!(live[0].id, declared[0].id);
        assert_eq!(live[0].template, declared[0].template);
        assert_eq!(live[0].scale, Scale::Replicas(3));
    }

    #[test]
    fn fields_of_a_newer_api_are_passed_over_and_texts_are_meant_as_they_stand() {
        let mut object = deployment();
        object["spec"]["template"]["spec"]["fieldOfTomorrow"] = json!({ "a": 1 });
        object["spec"]["template"]["spec"]["nodeSelector"] = json!({ "tier": "a" });
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({ "karpenter.sh/note": "${HOME} {{ x }}" });
        let live = read_live([&object]);
        assert_eq!(live.problems, []);
        let workload = live.workloads.values().next().expect("read");
        let note = workload.template.annotations.get("karpenter.sh/note");
        assert_eq!(note.map(String::as_str), Some("${HOME} {{ x }}"));
    }

    #[test]
    fn what_cannot_be_read_is_unresolved_and_never_smaller() {
        let mut object = deployment();
        object["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
            json!("half");
        let live = read_live([&object]);
        assert!(live.workloads.is_empty());
        assert_eq!(live.unresolved.len(), 1);
        assert_eq!(live.unresolved[0].object, "Deployment web/api");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "b" },
            "spec": { "containers": [{ "name": "c", "image": "c" }], "nodeName": "n" }
        });
        let live = read_live([&pod]);
        let (id, workload) = live.workloads.first_key_value().expect("read");
        assert_eq!(id.kind, WorkloadKind::Pod);
        assert_eq!(workload.template.spec.node_name.as_deref(), Some("n"));
    }
}

//! Reads objects of a running cluster with the readers of files.
//!
//! A running pod and a template in Git must mean the same to the planner, so one reader serves
//! both. There are two differences. The API server has validated the object and filled in its
//! defaults, so an unknown field is not a typo and is ignored. Text is literal, including `${…}`.

use std::cell::RefCell;
use std::sync::Arc;

use serde_json::Value as Json;

use super::classify::{DocumentClass, classify};
use super::collector::Collector;
use super::decode::{DEFAULT_NAMESPACES, Field, ObjectContext, ProblemCollector};
use super::delivery::NO_POLICY;
use super::job_retries;
use super::object_meta::{display_name, object_meta};
use super::placeholder::Vars;
use super::tree_reader::read_object;
use super::yaml::{YamlEntry, YamlNode, YamlValue};
use crate::model::desired::{Desired, Severity};
use crate::model::ids::WorkloadKind;
use crate::model::job::JobRetries;

/// Reads objects as an API server returns them, each with its `apiVersion` and `kind`.
///
/// Only errors are returned as problems: such an object was not read completely. A workload with an
/// error is unresolved, as with files.
pub fn read_live_objects<'a>(objects: impl IntoIterator<Item = &'a Json>) -> Desired {
    let report = ProblemCollector::default();
    let file = Arc::from("cluster");
    let mut into = Collector::default();
    for object in objects {
        read_live_object(object, &file, &report, &mut into);
    }
    let mut desired = into.into_desired();
    desired.problems = report.into_problems();
    desired.problems.retain(|problem| problem.severity == Severity::Error);
    desired.problems.sort();
    desired.problems.dedup();
    desired
}

/// Returns the failed pods that a Job survives, as the API server returns the Job.
pub fn read_job_retries(job: &Json) -> Option<JobRetries> {
    job_retries::read(WorkloadKind::Job, &yaml_node(job))
}

/// Reads one object, whose place is `file`. Returns false for a kind or version that is not read.
pub(super) fn read_live_object(
    object: &Json,
    file: &Arc<str>,
    report: &ProblemCollector,
    into: &mut Collector,
) -> bool {
    let vars = Vars::new();
    let root = yaml_node(object);
    let DocumentClass::Object(object_kind) = classify(&root) else { return false };
    let kind = root.get("kind").and_then(YamlNode::text).unwrap_or_default();
    let scope = ObjectContext {
        report,
        file,
        object: display_name(kind, &root, object_kind.scope(), DEFAULT_NAMESPACES, &vars),
        vars: &vars,
        rendered_origin: None,
        delivered_by: None,
        is_of_chart: false,
        namespaces: DEFAULT_NAMESPACES,
        policy: &NO_POLICY,
        verbatim: true,
        failed_fields: RefCell::default(),
    };
    if let Some(map) = Field::root(&scope, &root).map()
        && let Some(meta) = object_meta(&map)
    {
        read_object(object_kind, meta, &map, into);
    }
    true
}

/// Converts a JSON value. It has no position, so its lines are 0.
fn yaml_node(value: &Json) -> YamlNode<'_> {
    let value = match value {
        Json::Null => YamlValue::Plain("null".into()),
        Json::Bool(value) => YamlValue::Plain(if *value { "true" } else { "false" }.into()),
        Json::Number(number) => YamlValue::Plain(number.to_string().into()),
        Json::String(text) => YamlValue::Quoted(text.as_str().into()),
        Json::Array(items) => YamlValue::Seq(items.iter().map(yaml_node).collect()),
        Json::Object(entries) => YamlValue::Map(
            entries
                .iter()
                .map(|(key, value)| YamlEntry {
                    key: key.as_str().into(),
                    line: 0,
                    value: yaml_node(value),
                })
                .collect(),
        ),
    };
    YamlNode { line: 0, value }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::manifest::read;
    use crate::model::desired::{Scale, Tree, TreeFile};

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
    fn live_and_declared_objects_read_alike() {
        let object = deployment();
        let live = read_live_objects([&object]);
        let content = Ok(object.to_string().into_bytes().into());
        let tree = Tree { files: vec![TreeFile { path: "api.json".into(), content }] };
        let declared = read(&tree, &crate::model::desired::Fleet::default());
        assert_eq!(live.problems, []);
        let (live, declared): (Vec<_>, Vec<_>) =
            (live.workloads.into_values().collect(), declared.workloads.into_values().collect());
        assert_eq!(live.len(), 1);
        assert_eq!(live[0].id, declared[0].id);
        assert_eq!(live[0].template, declared[0].template);
        assert_eq!(live[0].scale, Scale::Replicas(3));
    }

    #[test]
    fn unknown_live_fields_are_ignored_and_text_is_literal() {
        let mut object = deployment();
        object["spec"]["template"]["spec"]["fieldOfTomorrow"] = json!({ "a": 1 });
        object["spec"]["template"]["spec"]["nodeSelector"] = json!({ "tier": "a" });
        object["spec"]["template"]["metadata"]["annotations"] =
            json!({ "karpenter.sh/note": "${HOME} {{ x }}" });
        let live = read_live_objects([&object]);
        assert_eq!(live.problems, []);
        let workload = live.workloads.values().next().expect("read");
        let note = workload.template.annotations.get("karpenter.sh/note");
        assert_eq!(note.map(String::as_str), Some("${HOME} {{ x }}"));
    }

    #[test]
    fn unreadable_live_objects_are_unresolved() {
        let mut object = deployment();
        object["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] =
            json!("half");
        let live = read_live_objects([&object]);
        assert!(live.workloads.is_empty());
        assert_eq!(live.unresolved.len(), 1);
        assert_eq!(live.unresolved[0].object, "Deployment web/api");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "b" },
            "spec": { "containers": [{ "name": "c", "image": "c" }], "nodeName": "n" }
        });
        let live = read_live_objects([&pod]);
        let (id, workload) = live.workloads.first_key_value().expect("read");
        assert_eq!(id.kind, WorkloadKind::Pod);
        assert_eq!(workload.template.spec.node_name.as_deref(), Some("n"));
    }
}

//! Cluster Autoscaler: the flags of its container that decide which groups it scales up.
//!
//! A value that cannot be read is recorded by the name of its flag. Nothing is assumed in its place.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::super::collector::{Collector, Definition};
use super::super::decode::{FieldMap, shorten};
use super::super::object_meta::ObjectMeta;
use super::super::placeholder::{Vars, substitute};
use super::super::yaml::{YamlNode, YamlValue, yaml_to_json};
use super::command_line;
use crate::model::cluster_autoscaler::AutoscalerFlags;
use crate::model::expander_priorities::ExpanderPriorities;

/// Name of the image and of the executable.
const NAME: &str = "cluster-autoscaler";
/// Key of the ConfigMap of the expander `priority`.
const PRIORITIES_KEY: &str = "priorities";

/// Returns the flags of Cluster Autoscaler, if one of the containers runs it.
pub(in super::super) fn autoscaler_flags(
    containers: &YamlNode<'_>,
    vars: &Vars,
) -> Option<Box<AutoscalerFlags>> {
    let YamlValue::Seq(containers) = &containers.value else { return None };
    let container = containers.iter().find(|container| runs_autoscaler(container))?;
    let mut flags = AutoscalerFlags::default();
    for (name, value) in command_line(container) {
        let value = value.map(|value| substitute(value, vars));
        let is_open = |text: &str| text.contains("$(") || text.contains("{{");
        let is_read = match &value {
            Some(value) if value.unresolved.is_some() || is_open(&value.text) => false,
            _ => read_flag(name, value.as_ref().map(|value| &*value.text), &mut flags).is_some(),
        };
        if !is_read && KNOWN.contains(&name) {
            flags.unread.insert(name.to_owned());
            if name.ends_with("-total") {
                flags.cluster_limits.insert(name.to_owned());
            }
        }
    }
    Some(Box::new(flags))
}

/// Flags that decide which groups are scaled up, and in which order.
const KNOWN: [&str; 11] = [
    "nodes",
    "node-group-auto-discovery",
    "expander",
    "namespace",
    "balance-similar-node-groups",
    "balancing-ignore-label",
    "balancing-label",
    "expendable-pods-priority-cutoff",
    "max-nodes-total",
    "cores-total",
    "memory-total",
];

/// Returns true if a container runs Cluster Autoscaler, by its image or its executable. Images of
/// exporters have longer names.
fn runs_autoscaler(container: &YamlNode<'_>) -> bool {
    let last = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    let image = container.get("image").and_then(YamlNode::text).map(last).unwrap_or_default();
    let image = image.split([':', '@']).next().unwrap_or_default();
    let command = container.get("command").and_then(|command| match &command.value {
        YamlValue::Seq(words) => words.first().and_then(YamlNode::text),
        YamlValue::Plain(_) | YamlValue::Quoted(_) | YamlValue::Map(_) | YamlValue::Tagged(..) => {
            None
        }
    });
    image == NAME || command.is_some_and(|command| last(command) == NAME)
}

/// Reads one flag. Returns `None` if its value cannot be read; other flags are skipped.
fn read_flag(name: &str, value: Option<&str>, flags: &mut AutoscalerFlags) -> Option<()> {
    match name {
        "nodes" => {
            let (least, rest) = value?.split_once(':')?;
            let (most, group) = rest.split_once(':')?;
            let bounds = (least.parse().ok()?, most.parse().ok()?);
            let is_valid = bounds.0 <= bounds.1 && !group.is_empty();
            is_valid.then(|| flags.groups.insert(group.into(), bounds))?;
        }
        "node-group-auto-discovery" => flags.discovery.push(discovery(value?)?),
        "namespace" => flags.namespace = Some(value?.to_owned()),
        "expander" => flags.expanders = value?.split(',').map(str::to_owned).collect(),
        "balance-similar-node-groups" => {
            flags.balances = value.map_or(Some(true), |value| value.parse().ok())?;
        }
        "balancing-ignore-label" => drop(flags.ignored_labels.insert(value?.to_owned())),
        "balancing-label" => drop(flags.similarity_labels.insert(value?.to_owned())),
        "expendable-pods-priority-cutoff" => flags.priority_cutoff = Some(value?.parse().ok()?),
        // Zero is no limit.
        "max-nodes-total" if value?.parse::<u64>().ok()? == 0 => {}
        "max-nodes-total" | "cores-total" | "memory-total" => {
            flags.cluster_limits.insert(name.to_owned());
        }
        _ => {}
    }
    Some(())
}

/// Reads `asg:tag=KEY[=VALUE],KEY[=VALUE]…`: the tags that a group must have.
fn discovery(text: &str) -> Option<BTreeMap<String, Option<String>>> {
    let tag = |tag: &str| {
        let (key, value) = match tag.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (tag, None),
        };
        (!key.is_empty()).then(|| (key.to_owned(), value))
    };
    text.strip_prefix("asg:tag=")?.split(',').map(tag).collect()
}

/// Records the ConfigMap of the expander `priority`.
pub(in super::super) fn expander_priorities(
    meta: ObjectMeta,
    root: &FieldMap<'_>,
    into: &mut Collector,
) {
    let text = root.field.node.get("data").and_then(|data| data.get(PRIORITIES_KEY)?.text());
    let found = text.ok_or_else(|| format!("it has no key `{PRIORITIES_KEY}`")).and_then(levels);
    let found = found.map_or_else(ExpanderPriorities::Unreadable, ExpanderPriorities::Levels);
    into.skip(meta.origin.clone(), "kind ConfigMap");
    let ObjectMeta { namespace, origin, .. } = meta;
    let (kind, name, scope) = ("expander priorities", namespace.to_string(), root.field.scope);
    let named = Definition { kind, name, scope, origin };
    into.insert(named, |all| &mut all.desired.expander_priorities, namespace, found, PartialEq::eq);
}

/// Reads a YAML map of priorities to lists of regular expressions.
fn levels(text: &str) -> Result<BTreeMap<i64, Vec<String>>, String> {
    let Some(Json::Object(map)) = yaml_to_json(text) else {
        return Err(format!("the value of `{PRIORITIES_KEY}` is no YAML map"));
    };
    let level = |(priority, list): (&String, &Json)| {
        let priority: i64 =
            priority.parse().map_err(|_| format!("`{}` is no priority", shorten(priority)))?;
        let list = match list {
            Json::Array(list) => list.as_slice(),
            Json::Null => &[],
            Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
                return Err(format!("priority {priority} has no list"));
            }
        };
        let texts = list.iter().map(|text| text.as_str().map(str::to_owned));
        let texts = texts.collect::<Option<_>>();
        texts
            .map(|texts| (priority, texts))
            .ok_or_else(|| format!("priority {priority} lists a value that is no text"))
    };
    map.iter().map(level).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read_live_objects;

    /// Returns the flags of a Deployment as the API server returns it.
    fn flags(image: &str, command: &[&str], args: &[&str]) -> Option<AutoscalerFlags> {
        let container = serde_json::json!({
            "name": "aws-cluster-autoscaler", "image": image, "command": command, "args": args,
        });
        let object = serde_json::json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "ca", "namespace": "kube-system" },
            "spec": { "replicas": 1, "selector": {}, "template": {
                "metadata": {}, "spec": { "containers": [container] } } },
        });
        let mut read = read_live_objects([&object]);
        assert_eq!(read.problems, []);
        let (_, workload) = read.workloads.pop_first().expect("a Deployment");
        workload.template.cluster_autoscaler.as_deref().cloned()
    }

    const IMAGE: &str = "registry.k8s.io/autoscaling/cluster-autoscaler:v1.35.0";

    #[test]
    fn flags_of_the_helm_chart_are_read() {
        let command = [
            "./cluster-autoscaler",
            "--cloud-provider=aws",
            "--namespace=kube-system",
            "--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,\
             k8s.io/cluster-autoscaler/prod=owned",
            "--balance-similar-node-groups",
            "--expander=priority,least-waste",
            "--logtostderr=true",
            "--skip-nodes-with-local-storage=false",
            "--v=4",
        ];
        let read = flags(IMAGE, &command, &[]).expect("Cluster Autoscaler");
        let tags: BTreeMap<String, Option<String>> = [
            ("k8s.io/cluster-autoscaler/enabled".to_owned(), None),
            ("k8s.io/cluster-autoscaler/prod".to_owned(), Some("owned".to_owned())),
        ]
        .into();
        assert_eq!(read.discovery, [tags]);
        assert_eq!(read.expanders, ["priority", "least-waste"]);
        assert!(read.balances && read.unread.is_empty() && read.groups.is_empty(), "{read:?}");
        let group = |tags: &[(&str, &str)]| {
            let tags = tags.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect();
            read.bounds(Some(&"web".into()), &tags, (1, 4))
        };
        let enabled = ("k8s.io/cluster-autoscaler/enabled", "true");
        assert_eq!(group(&[enabled]), None, "a group needs every tag");
        assert_eq!(group(&[enabled, ("k8s.io/cluster-autoscaler/prod", "shared")]), None);
        assert_eq!(group(&[enabled, ("k8s.io/cluster-autoscaler/prod", "owned")]), Some((1, 4)));
    }

    #[test]
    fn limits_of_the_whole_cluster_select_no_group() {
        for (more, is_limited) in [
            ("--max-nodes-total=0", false),
            ("--max-nodes-total=20", true),
            ("--max-nodes-total=$(MOST)", true),
            ("--cores-total=0:64", true),
            ("--memory-total=0:640", true),
        ] {
            let read = flags(IMAGE, &[], &["--nodes=0:5:web", more]).expect("flags");
            let bounds = read.bounds(Some(&"web".into()), &[].into(), (0, 9));
            assert_eq!(bounds, (!is_limited).then_some((0, 5)), "{more}");
        }
    }

    #[test]
    fn unread_flags_have_no_defaults() {
        let args = ["--expander=$(X)", "--expendable-pods-priority-cutoff=$(CUTOFF)"];
        let read = flags(IMAGE, &[], &args).expect("flags");
        assert_eq!(read.expanders().collect::<Vec<_>>(), ["expander"], "none that is predicted");
        assert_eq!(read.priority_cutoff(), i32::MAX);
        let read = flags(IMAGE, &[], &[]).expect("flags");
        assert_eq!(read.expanders().collect::<Vec<_>>(), ["least-waste"]);
        assert_eq!(read.priority_cutoff(), -10);
    }

    #[test]
    fn priorities_of_the_expander_are_read() {
        let read = |text: Option<&str>| {
            let data = text.map(|text| serde_json::json!({ "priorities": text }));
            let object = serde_json::json!({
                "apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": { "name": "cluster-autoscaler-priority-expander", "namespace": "x" },
            });
            let mut read = read_live_objects([&object]);
            assert_eq!(read.problems, []);
            read.expander_priorities.remove("x").expect("the ConfigMap")
        };
        let texts = |of: &[&str]| of.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let levels = [(10, texts(&[".*t2\\.large.*"])), (50, texts(&["^spot", "a"])), (60, vec![])];
        let text = "10:\n  - .*t2\\.large.*\n50:\n  - ^spot\n  - 'a'\n60:\n";
        assert_eq!(read(Some(text)), ExpanderPriorities::Levels(levels.into()));
        for (text, why) in [
            (None, "it has no key `priorities`"),
            (Some("- a"), "the value of `priorities` is no YAML map"),
            (Some("10: [*spot]"), "the value of `priorities` is no YAML map"),
            (Some("high: [a]"), "`high` is no priority"),
            (Some("10: a"), "priority 10 has no list"),
            (Some("10: [[a]]"), "priority 10 lists a value that is no text"),
        ] {
            assert_eq!(read(text), ExpanderPriorities::Unreadable(why.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn bounds_of_named_groups_are_read() {
        let args = ["--nodes=2:4:workers-a", "--nodes", "0:20:workers:b", "--v", "4"];
        let read = flags("mirror/cluster-autoscaler@sha256:00", &[], &args).expect("flags");
        let bounds = |name: &str, own| read.bounds(Some(&name.into()), &[].into(), own);
        assert_eq!(bounds("workers-a", (1, 9)), Some((2, 4)));
        assert_eq!(bounds("workers:b", (0, 9)), Some((0, 9)), "Auto Scaling enforces its own");
        assert_eq!(bounds("workers-c", (1, 9)), None);
    }

    #[test]
    fn unreadable_flags_are_named_and_never_assumed() {
        let args = [
            "--nodes=1:workers",
            "--nodes=5:1:workers",
            "--node-group-auto-discovery=asg:tag=$(TAGS)",
            "--node-group-auto-discovery=mig:namePrefix=pfx",
            "--balance-similar-node-groups=perhaps",
            "--expendable-pods-priority-cutoff",
        ];
        let read = flags("x", &["/app/cluster-autoscaler"], &args).expect("flags");
        let names = [
            "balance-similar-node-groups",
            "expendable-pods-priority-cutoff",
            "node-group-auto-discovery",
            "nodes",
        ];
        assert_eq!(read.unread.iter().map(String::as_str).collect::<Vec<_>>(), names);
        assert!(read.groups.is_empty() && read.discovery.is_empty() && !read.balances);
    }

    #[test]
    fn other_containers_have_no_flags() {
        let args = ["--nodes=0:9:web"];
        for image in [
            "registry.k8s.io/cpa/cluster-proportional-autoscaler:v1",
            "acme/cluster-autoscaler-exporter:2",
            "cluster-autoscaler.acme.example/agent:1",
        ] {
            assert_eq!(flags(image, &["sh"], &args), None, "{image}");
        }
    }
}

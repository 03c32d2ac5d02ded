//! Drift of a node from the declaration of its pool.
//!
//! Each instance carries a digest of every field that it was launched with, so that a change is
//! reported by field name. Invariant: digests of another version of this projection are ignored.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

use crate::catalog::InstanceType;
use crate::model::desired::{Generation, NodeClass, Pool};
use crate::model::ids::{LabelKey, LabelValue};
use crate::model::market::CapacityType;
use crate::model::observed::{Instance, Node, tag};
use crate::model::pod::Taint;
use crate::model::reason::DriftedField;
use crate::model::requirement::key;

/// Version of the projection below. A release that changes the projection raises it, so that an
/// upgrade replaces no node.
const VERSION: &str = "v2";

/// Fields of a node class with separate digests. All other fields share the last digest.
const CLASS_FIELDS: [&str; 16] = [
    "amiFamily",
    "amiSelector",
    "amiSelectorTerms",
    "associatePublicIPAddress",
    "blockDeviceMappings",
    "context",
    "detailedMonitoring",
    "instanceProfile",
    "instanceStorePolicy",
    "kubelet",
    "metadataOptions",
    "role",
    "securityGroupSelectorTerms",
    "subnetSelectorTerms",
    "tags",
    "userData",
];

/// Name of all fields of a node class without a digest of their own.
const OTHER_CLASS_FIELDS: &str = "other fields";

/// Prefix of the field of a label that contradicts the instance.
const OF_INSTANCE: &str = "instance ";

/// Hex digits per field. A change is missed once in four billion, and all digits fit the 256
/// characters of a tag value.
const DIGITS: usize = 8;

/// Returns digests of all fields of pool and node class that a running node cannot adopt.
///
/// Requirements are excluded: a node is current as long as its labels satisfy them. Limits, weight
/// and disruption settings do not affect a running node.
pub(super) fn spec_digest(pool: &Pool, class: &NodeClass) -> String {
    let digests = spec_fields(pool, class).map(|(_, content)| digest_of(&content));
    format!("{VERSION}:{}", digests.collect::<String>())
}

/// Returns the first digits of the digest of a field.
fn digest_of(content: &str) -> String {
    hex::encode(Sha256::digest(content.as_bytes())).chars().take(DIGITS).collect()
}

/// Returns the compared fields with their content, in the order of their digests.
fn spec_fields<'a>(
    pool: &'a Pool,
    class: &'a NodeClass,
) -> impl Iterator<Item = (&'static str, String)> + 'a {
    let of_pool = [
        ("labels", serde_json::json!(pool.labels).to_string()),
        ("annotations", serde_json::json!(pool.annotations).to_string()),
        ("taints", taints(&pool.taints)),
        ("startupTaints", taints(&pool.startup_taints)),
        ("nodeClassRef", class.name.to_string()),
    ];
    let of_class = CLASS_FIELDS.iter().map(|field| {
        let digest = class.spec_digests.get(*field);
        (*field, digest.map(ToString::to_string).unwrap_or_default())
    });
    let others: Vec<_> =
        class.spec_digests.iter().filter(|(key, _)| !CLASS_FIELDS.contains(&&***key)).collect();
    let others = (OTHER_CLASS_FIELDS, serde_json::json!(others).to_string());
    of_pool.into_iter().chain(of_class).chain([others])
}

fn taints(list: &[Taint]) -> String {
    let sorted: BTreeSet<String> = list.iter().map(taint_text).collect();
    sorted.into_iter().collect::<Vec<_>>().join(", ")
}

fn taint_text(taint: &Taint) -> String {
    format!("{}={}:{:?}", taint.key, taint.value, taint.effect)
}

/// Returns the names of fields that changed since a node was launched, without those of `resolved`.
/// Returns `None` if nothing changed or the digests are unknown.
pub(super) fn changed_fields(
    running: &str,
    pool: &Pool,
    class: &NodeClass,
    resolved: &[&str],
) -> Option<String> {
    let declared = spec_digest(pool, class);
    let (running, declared) = (split_digests(running)?, split_digests(&declared)?);
    let (mut pool_fields, mut class_fields) = (Vec::new(), Vec::new());
    let digests = running.zip(declared);
    for ((name, _), (running, declared)) in spec_fields(pool, class).zip(digests) {
        let is_same = running == declared
            || name == "amiFamily" && is_implied(running, declared, class)
            || resolved.contains(&name);
        if is_same {
            continue;
        }
        let is_of_class = CLASS_FIELDS.contains(&name) || name == OTHER_CLASS_FIELDS;
        let fields = if is_of_class { &mut class_fields } else { &mut pool_fields };
        fields.push(name.to_owned());
    }
    let mut changed = pool_fields;
    if !class_fields.is_empty() {
        changed.push(format!("{} of node class {}", class_fields.join(", "), class.name));
    }
    (!changed.is_empty()).then(|| changed.join(", "))
}

/// Returns true if one of two digests of `amiFamily` is that of an absent field, and the other one
/// states the family of the alias. A change of the alias itself changes `amiSelectorTerms`.
fn is_implied(running: &str, declared: &str, class: &NodeClass) -> bool {
    // An AWSNodeTemplate has no alias.
    let has_alias = class.generation != Generation::V1alpha5;
    // `Custom` beside an alias changes the user data.
    let custom = digest_of(&hex::encode(Sha256::digest("\"Custom\"")));
    let digests = [running, declared];
    has_alias && digests.contains(&&*digest_of("")) && !digests.contains(&&*custom)
}

/// Returns true if the labels of the pool changed since a node was launched.
pub(super) fn had_other_labels(running: &str, pool: &Pool, class: &NodeClass) -> bool {
    let declared = spec_digest(pool, class);
    let labels = |text: &str| split_digests(text).and_then(|mut all| all.next().map(str::to_owned));
    labels(running).is_some_and(|running| Some(running) != labels(&declared))
}

/// Splits a text of this version into its digests.
fn split_digests(text: &str) -> Option<impl Iterator<Item = &str>> {
    let (version, digits) = text.split_once(':')?;
    let count = CLASS_FIELDS.len() + 6;
    // Reject texts that were edited by hand.
    let is_readable = version == VERSION && digits.len() == count * DIGITS && digits.is_ascii();
    is_readable.then(|| (0..count).filter_map(move |at| digits.get(at * DIGITS..(at + 1) * DIGITS)))
}

/// Returns true for a taint that neither the pool nor the cluster sets. The cluster itself sets
/// taints on starting, cordoned and drained nodes.
pub(super) fn is_set_by_hand(taint: &Taint, pool: &Pool) -> bool {
    let of_cluster = [
        "node.kubernetes.io/",
        "node.cloudprovider.kubernetes.io/",
        "fleetwright.dev/",
        "karpenter.sh/",
    ];
    !taint.is_ephemeral()
        && !pool.startup_taints.contains(taint)
        && !pool.taints.contains(taint)
        && !of_cluster.iter().any(|known| taint.key.as_str().starts_with(known))
}

/// Returns the well-known labels of a node that contradict its instance or the type of its instance,
/// with the values of these. They are set by hand: neither a commit nor a launch explains them.
/// `kind` is the type of the instance, if it is known.
pub(super) fn contradicted_labels(
    node: &Node,
    instance: &Instance,
    region: &str,
    kind: Option<&InstanceType>,
) -> Vec<DriftedField> {
    let arch = kind.map_or("", |kind| kind.arch.as_str());
    let facts = [
        (key::INSTANCE_TYPE, instance.instance_type.as_str()),
        (key::ZONE, instance.zone.as_str()),
        (key::REGION, region),
        (key::ARCH, arch),
    ];
    let known = facts.into_iter().filter(|(_, fact)| !fact.is_empty());
    let mut found = Vec::new();
    let mut compare = |key: &str, fact: &str, differs: &dyn Fn(&str) -> bool| {
        let is = node.labels.get(key).map(LabelValue::as_str).filter(|is| differs(is));
        found.extend(is.map(|is| DriftedField {
            field: format!("{OF_INSTANCE}label {key}"),
            is: is.to_owned(),
            declared: fact.to_owned(),
        }));
    };
    for (key, fact) in known {
        compare(key, fact, &|is| is != fact);
    }
    // On-demand instances may run in a reservation that their pool does not name.
    let is_spot = instance.capacity_type.is_spot();
    compare(key::CAPACITY_TYPE, instance.capacity_type.as_str(), &|is| {
        (is == CapacityType::Spot.as_str()) != is_spot
    });
    // Another tool may have labeled an adopted node by another table of instance types.
    let launched = kind.filter(|_| instance.tags.contains_key(tag::SPEC));
    for (key, fact) in launched.into_iter().flat_map(labels_of_type) {
        compare(key.as_str(), fact.as_str(), &|is| is != fact.as_str());
    }
    found
}

/// Returns the labels that describe an instance type. Templates of nodes have all labels of `kind`.
fn labels_of_type(kind: &InstanceType) -> impl Iterator<Item = (&LabelKey, &LabelValue)> {
    kind.labels.iter().filter(|(key, _)| key.as_str().starts_with(key::INSTANCE_PREFIX))
}

/// Returns true if a contradiction explains why the same label does not match the pool.
pub(super) fn explains(contradiction: &DriftedField, difference: &DriftedField) -> bool {
    contradiction.field.strip_prefix(OF_INSTANCE) == Some(difference.field.as_str())
}

/// Returns the manual changes of a node that was launched as declared: missing and undeclared taints,
/// labels that differ from its pool or are not declared, and tags that differ from its class. They
/// alone replace no node. `spec` is the digest of pool and class.
pub(super) fn manual_changes(
    node: &Node,
    instance: &Instance,
    pool: &Pool,
    class: &NodeClass,
    spec: &str,
) -> Vec<DriftedField> {
    // If the node was launched with other settings, a commit may explain the difference.
    if instance.tags.get(tag::SPEC).is_none_or(|launched| launched != spec) {
        return Vec::new();
    }
    let mut changes = Vec::new();
    let mut add = |field: String, is: &str, declared: &str| {
        changes.push(DriftedField { field, is: is.to_owned(), declared: declared.to_owned() });
    };
    for taint in pool.taints.iter().filter(|taint| !node.taints.contains(taint)) {
        add(format!("taint {}", taint.key), "absent", &taint_text(taint));
    }
    for taint in node.taints.iter().filter(|taint| is_set_by_hand(taint, pool)) {
        add(format!("taint {}", taint.key), &taint_text(taint), "none");
    }
    for (key, declared) in &pool.labels {
        let is = node.labels.get(key).map_or("absent", LabelValue::as_str);
        if is != declared.as_str() {
            add(format!("label {key}"), is, declared.as_str());
        }
    }
    // Controllers prefix the labels that they set. User data may set any label.
    let is_set_by_user = |key: &LabelKey| {
        !key.as_str().contains('/')
            && !pool.labels.contains_key(key)
            && !pool.requirements.iter().any(|requirement| requirement.key == *key)
            && !class.spec_digests.contains_key("userData")
    };
    for (key, is) in node.labels.iter().filter(|(key, _)| is_set_by_user(key)) {
        add(format!("label {key}"), is.as_str(), "none");
    }
    for (key, declared) in &class.tags {
        if let Some(is) = instance.tags.get(key).filter(|is| *is != declared) {
            add(format!("tag {key}"), is, declared);
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::manifest::read;
    use crate::model::desired::{Fleet, Tree, TreeFile};
    use crate::model::requirement::label;
    use crate::testing::pods::no_schedule;
    use crate::testing::{Scenario, node_class, pool};

    fn with(class: &NodeClass, field: &str, digest: &str) -> NodeClass {
        let mut digests = (*class.spec_digests).clone();
        digests.insert(field.to_owned(), digest.into());
        NodeClass { spec_digests: Arc::new(digests), ..class.clone() }
    }

    #[test]
    fn drift_names_the_changed_fields() {
        let (pool, class) = (pool(), node_class());
        let running = spec_digest(&pool, &class);
        assert!(running.len() <= 256, "the most that a tag holds");
        let class_name = &class.name;
        let tainted = Pool { taints: vec![no_schedule("team", "")], ..pool.clone() };
        let labelled = Pool { labels: [label("team", "a")].into(), ..tainted.clone() };
        let annotations = [("team".to_owned(), "a".to_owned())].into();
        let annotated = Pool { annotations, ..tainted.clone() };
        let data = with(&class, "userData", "y");
        let both = with(&data, "kubelet", "k");
        for (pool, class, expected) in [
            (&pool, &class, None),
            (&tainted, &class, Some("taints".to_owned())),
            (&labelled, &class, Some("labels, taints".to_owned())),
            (&annotated, &class, Some("annotations, taints".to_owned())),
            (&pool, &both, Some(format!("kubelet, userData of node class {class_name}"))),
            (&tainted, &data, Some(format!("taints, userData of node class {class_name}"))),
            (
                &pool,
                &with(&class, "new", "1"),
                Some(format!("other fields of node class {class_name}")),
            ),
        ] {
            assert_eq!(changed_fields(&running, pool, class, &[]), expected);
        }
        let found = changed_fields(&running, &tainted, &both, &["taints", "userData"]);
        assert_eq!(found, Some(format!("kubelet of node class {class_name}")));
        assert!(had_other_labels(&running, &labelled, &class));
        assert!(!had_other_labels(&running, &tainted, &class));
        assert!(!had_other_labels("v1:00", &labelled, &class), "nothing is known of it");
        for unreadable in ["v1:00", "v2:", "v2:zz", "", &running[1..], &running.replace("v2", "v3")]
        {
            assert_eq!(changed_fields(unreadable, &tainted, &class, &[]), None, "{unreadable}");
        }
    }

    #[test]
    fn family_of_the_alias_may_be_stated_or_not() {
        let declared = |alias: &str, family: &str| {
            let text = format!(
                "apiVersion: karpenter.k8s.aws/v1\nkind: EC2NodeClass\nmetadata: {{name: c}}\nspec:\n  \
                 role: r\n  subnetSelectorTerms: [{{id: subnet-1}}]\n  securityGroupSelectorTerms: [{{id: sg-1}}]\n  \
                 amiSelectorTerms: [{{alias: {alias}}}]\n{family}"
            );
            let file = TreeFile { path: "class.yaml".into(), content: Ok(text.as_bytes().into()) };
            let desired = read(&Tree { files: vec![file] }, &Fleet::default());
            desired.node_classes.values().next().expect("a class").clone()
        };
        let absent = declared("al2023@v1", "");
        let stated = declared("al2023@v1", "  amiFamily: AL2023\n");
        let custom = declared("al2023@v1", "  amiFamily: Custom\n");
        let other = declared("al2@v1", "  amiFamily: AL2\n");
        let pool = pool();
        let drift = |from: &NodeClass, to: &NodeClass| {
            changed_fields(&spec_digest(&pool, from), &pool, to, &[])
        };
        assert_eq!(drift(&absent, &stated), None);
        assert_eq!(drift(&stated, &absent), None);
        for (from, to) in [(&absent, &custom), (&custom, &absent), (&stated, &custom)] {
            assert_eq!(drift(from, to).as_deref(), Some("amiFamily of node class c"));
        }
        // The alias tells the change of the family.
        assert_eq!(drift(&absent, &other).as_deref(), Some("amiSelectorTerms of node class c"));
        // A v1alpha1 template has no alias: an absent family is AL2.
        let old = NodeClass { generation: Generation::V1alpha5, ..stated.clone() };
        assert_eq!(drift(&absent, &old).as_deref(), Some("amiFamily of node class c"));
    }

    type Edit<'a> = &'a dyn Fn(&mut Node, &mut Instance, &mut Pool, &mut NodeClass);

    /// Returns the manual changes of a node that was launched as declared, after an edit.
    fn drift_with(change: Edit<'_>) -> Vec<(String, String, String)> {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.scale(1);
        scenario.step(1);
        let mut node = scenario.observed.nodes.values().next().expect("launched").clone();
        let mut instance = scenario.observed.instances.values().next().expect("launched").clone();
        let (mut pool, mut class) = (pool(), node_class());
        change(&mut node, &mut instance, &mut pool, &mut class);
        let spec = spec_digest(&pool, &class);
        instance.tags.insert(tag::SPEC.to_owned(), spec.clone());
        let changes = manual_changes(&node, &instance, &pool, &class, &spec);
        changes.into_iter().map(|m| (m.field, m.is, m.declared)).collect()
    }

    fn difference(field: &str, is: &str, declared: &str) -> (String, String, String) {
        (field.to_owned(), is.to_owned(), declared.to_owned())
    }

    #[test]
    fn labels_that_contradict_the_instance_are_found() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.scale(1);
        scenario.step(1);
        let node = scenario.observed.nodes.values().next().expect("launched").clone();
        let instance = scenario.observed.instances.values().next().expect("launched").clone();
        let kind = scenario.catalog.types.get("m5.large");
        let found = |node: &Node, instance: &Instance| {
            let found = contradicted_labels(node, instance, "us-east-1", kind);
            found.into_iter().map(|m| (m.field, m.is, m.declared)).collect::<Vec<_>>()
        };
        assert_eq!(found(&node, &instance), []);
        for (key, is, declared) in [
            ("node.kubernetes.io/instance-type", "c5.large", "m5.large"),
            ("topology.kubernetes.io/zone", "us-east-1z", instance.zone.as_str()),
            ("topology.kubernetes.io/region", "eu-west-1", "us-east-1"),
            ("kubernetes.io/arch", "arm64", "amd64"),
            ("karpenter.sh/capacity-type", "spot", "on-demand"),
        ] {
            let mut edited = node.clone();
            edited.labels.extend([label(key, is)]);
            let expected = difference(&format!("instance label {key}"), is, declared);
            assert_eq!(found(&edited, &instance), [expected], "{key}");
        }
        // An open reservation takes instances that were launched on demand.
        let reserved = Instance { capacity_type: CapacityType::Reserved, ..instance.clone() };
        assert_eq!(found(&node, &reserved), []);
        let unlabeled = Node { labels: [].into(), ..node.clone() };
        assert_eq!(found(&unlabeled, &instance), [], "an absent label is not wrong");
    }

    #[test]
    fn labels_that_contradict_the_type_of_the_instance_are_found() {
        let mut scenario = Scenario::new(&["m5.large"], 500, 512);
        scenario.scale(1);
        scenario.step(1);
        let node = scenario.observed.nodes.values().next().expect("launched").clone();
        let instance = scenario.observed.instances.values().next().expect("launched").clone();
        let mut adopted = instance.clone();
        adopted.tags.remove(tag::SPEC);
        let kind = scenario.catalog.types.get("m5.large").expect("a known type");
        let found = |node: &Node, instance: &Instance, kind: Option<&InstanceType>| {
            let found = contradicted_labels(node, instance, "us-east-1", kind);
            found.into_iter().map(|m| (m.field, m.is, m.declared)).collect::<Vec<_>>()
        };
        let mut compared = BTreeSet::new();
        for (key, declared) in &*kind.labels {
            let Some(suffix) = key.as_str().strip_prefix("karpenter.k8s.aws/instance-") else {
                continue;
            };
            assert_eq!(node.labels.get(key), Some(declared), "the launch sets {key}");
            let mut edited = node.clone();
            edited.labels.extend([label(key.as_str(), "other")]);
            let expected = difference(&format!("instance label {key}"), "other", declared.as_str());
            assert_eq!(found(&edited, &instance, Some(kind)), [expected], "{key}");
            assert_eq!(found(&edited, &adopted, Some(kind)), [], "another tool set {key}");
            assert_eq!(found(&edited, &instance, None), [], "nothing is known of the type");
            compared.insert(suffix);
        }
        for suffix in ["category", "cpu", "family", "generation", "hypervisor", "memory", "size"] {
            assert!(compared.contains(suffix), "{suffix} among {compared:?}");
        }
        let mut other = node.clone();
        other.labels.extend([label("karpenter.k8s.aws/instance-mine", "x")]);
        assert_eq!(found(&other, &instance, Some(kind)), [], "no type has it");
    }

    #[test]
    fn manual_taints_and_tags_are_drift_and_cluster_taints_are_not() {
        assert_eq!(drift_with(&|_, _, _, _| ()), []);
        assert_eq!(
            drift_with(&|_, _, pool, _| pool.taints.push(no_schedule("team", ""))),
            [difference("taint team", "absent", "team=:NoSchedule")]
        );
        assert_eq!(
            drift_with(&|node, _, _, _| node.taints.push(no_schedule("mine", ""))),
            [difference("taint mine", "mine=:NoSchedule", "none")]
        );
        assert_eq!(
            drift_with(&|_, instance, _, class| {
                class.tags = [("team".to_owned(), "a".to_owned())].into();
                instance.tags.insert("team".to_owned(), "b".to_owned());
            }),
            [difference("tag team", "b", "a")]
        );
        assert_eq!(
            drift_with(&|_, instance, _, _| {
                instance.tags.insert(tag::CHANGE.to_owned(), "another".to_owned());
            }),
            [],
            "no class declares it"
        );
        for key in ["node.kubernetes.io/unschedulable", "node.kubernetes.io/disk-pressure"] {
            assert_eq!(
                drift_with(&|node, _, _, _| node.taints.push(no_schedule(key, ""))),
                [],
                "{key}"
            );
        }
    }

    #[test]
    fn all_manual_changes_of_a_node_are_reported() {
        let found = drift_with(&|node, instance, pool, class| {
            node.taints.extend([no_schedule("mine", ""), no_schedule("yours", "")]);
            node.labels.extend([label("ops", "x"), label("team", "b")]);
            pool.labels.extend([label("team", "a")]);
            class.spec_digests = Arc::default();
            class.tags = [("owner".to_owned(), "a".to_owned())].into();
            instance.tags.insert("owner".to_owned(), "b".to_owned());
        });
        assert_eq!(
            found,
            [
                difference("taint mine", "mine=:NoSchedule", "none"),
                difference("taint yours", "yours=:NoSchedule", "none"),
                difference("label team", "b", "a"),
                difference("label ops", "x", "none"),
                difference("tag owner", "b", "a"),
            ]
        );
    }

    #[test]
    fn manual_labels_are_drift_unless_another_writer_may_set_them() {
        let ops = label("ops", "x");
        let set = |node: &mut Node| node.labels.extend([ops.clone()]);
        assert_eq!(
            drift_with(&|node, _, _, class| {
                set(node);
                class.spec_digests = Arc::default();
            }),
            [difference("label ops", "x", "none")]
        );
        assert_eq!(
            drift_with(&|_, _, pool, _| pool.labels.extend([ops.clone()])),
            [difference("label ops", "absent", "x")]
        );
        assert_eq!(drift_with(&|node, _, _, _| set(node)), [], "the user data may set it");
        assert_eq!(
            drift_with(&|node, _, _, class| {
                node.labels.extend([label("example.com/found", "x")]);
                class.spec_digests = Arc::default();
            }),
            [],
            "a controller sets it"
        );
    }
}

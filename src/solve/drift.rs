//! What makes a node differ from what its pool declares.
//!
//! A machine carries a digest of each field that it was launched with, so that a change is told by
//! its name. Invariant: digests of another version of this projection say nothing.

use std::collections::BTreeSet;

use sha2::{Digest as _, Sha256};

use super::learned::is_ephemeral;
use crate::fleet::{Instance, Node, tag};
use crate::ids::hex;
use crate::manifest::{NodeClass, Pool};
use crate::pod::Taint;

/// Version of the projection below. A release that projects differently raises it, so that an upgrade
/// replaces no node.
const VERSION: &str = "v2";

/// Fields of a node class, each with a digest of its own; what else there is shares the last.
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

/// Hex digits of a field: a change goes unseen once in four billion, and all of them together are no
/// longer than the value of a tag may be, 256 characters.
const DIGITS: usize = 8;

/// Returns a digest of everything in pool and node class that a running node cannot take over, field
/// by field.
///
/// Requirements are left out: a node stays as long as its labels satisfy them. Limits, weight and
/// disruption settings never concern a running node.
#[must_use]
pub(super) fn spec_digest(pool: &Pool, class: &NodeClass) -> String {
    let digests = fields(pool, class).map(|(_, content)| {
        let digest = hex(&Sha256::digest(content.as_bytes()));
        digest.chars().take(DIGITS).collect::<String>()
    });
    format!("{VERSION}:{}", digests.collect::<String>())
}

/// Returns the fields that are told apart, in the order of their digests, each with all it holds.
fn fields<'a>(
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
    let others = class.spec_digests.iter().filter(|(key, _)| !CLASS_FIELDS.contains(&&***key));
    let others: Vec<_> = others.collect();
    let others = ("other fields", serde_json::json!(others).to_string());
    of_pool.into_iter().chain(of_class).chain([others])
}

fn taints(list: &[Taint]) -> String {
    let sorted: BTreeSet<String> = list.iter().map(words).collect();
    sorted.into_iter().collect::<Vec<_>>().join(", ")
}

fn words(taint: &Taint) -> String {
    format!("{}={}:{:?}", taint.key, taint.value, taint.effect)
}

/// Returns the fields in which a node was launched otherwise than is declared now, in words; `None`
/// where it was launched so, or where that cannot be told.
#[must_use]
pub(super) fn changed(running: &str, pool: &Pool, class: &NodeClass) -> Option<String> {
    let declared = spec_digest(pool, class);
    let (running, declared) = (digests(running)?, digests(&declared)?);
    let names = fields(pool, class).map(|(name, _)| name);
    let pairs = running.zip(declared);
    let differing = names.zip(pairs).filter(|(_, (running, declared))| running != declared);
    let names: Vec<&str> = differing.map(|(name, _)| name).collect();
    let of_class = |name: &&str| CLASS_FIELDS.contains(name) || *name == "other fields";
    let (class_names, pool_names): (Vec<&str>, Vec<&str>) = names.into_iter().partition(of_class);
    let class_names = (!class_names.is_empty())
        .then(|| format!("{} of node class {}", class_names.join(", "), class.name));
    let said: Vec<String> = pool_names.into_iter().map(str::to_owned).chain(class_names).collect();
    (!said.is_empty()).then(|| said.join(", "))
}

/// Returns whether a node was launched when its pool had other labels.
#[must_use]
pub(super) fn has_other_labels(running: &str, pool: &Pool, class: &NodeClass) -> bool {
    let declared = spec_digest(pool, class);
    let labels = |text: &str| digests(text).and_then(|mut all| all.next().map(str::to_owned));
    labels(running).is_some_and(|running| Some(running) != labels(&declared))
}

/// Returns the digests that a text of this version holds.
fn digests(text: &str) -> Option<impl Iterator<Item = &str>> {
    let (version, digits) = text.split_once(':')?;
    let count = CLASS_FIELDS.len() + 6;
    // What somebody wrote by hand says nothing either.
    let is_ours = version == VERSION && digits.len() == count * DIGITS && digits.is_ascii();
    is_ours.then(|| (0..count).filter_map(move |at| digits.get(at * DIGITS..(at + 1) * DIGITS)))
}

/// What somebody changed on a node or its machine that no commit explains.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Moved {
    pub(super) field: String,
    pub(super) is: String,
    pub(super) declared: String,
}

/// Returns what moved on a node that was launched as its pool declares: a taint that is missing or
/// that nobody declares, a tag with another value than the class gives it. Such a node stays. `spec` is the digest of
/// pool and class.
#[must_use]
pub(super) fn moved(
    node: &Node,
    instance: &Instance,
    (pool, class): (&Pool, &NodeClass),
    spec: &str,
) -> Option<Moved> {
    // Of one that was launched otherwise, a commit may explain it.
    if instance.tags.get(tag::SPEC)? != spec {
        return None;
    }
    let found = |field: String, is: &str, declared: &str| Moved {
        field,
        is: is.to_owned(),
        declared: declared.to_owned(),
    };
    if let Some(lost) = pool.taints.iter().find(|taint| !node.taints.contains(taint)) {
        return Some(found(format!("taint {}", lost.key), "absent", &words(lost)));
    }
    // Taints of a node that comes up, is cordoned, or is drained are the cluster's own business.
    let is_foreign = |taint: &&Taint| {
        let of_kubernetes = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];
        let starting = is_ephemeral(taint) || pool.startup_taints.contains(taint);
        let ours = ["fleetwright.dev/", "karpenter.sh/"];
        !starting
            && !pool.taints.contains(taint)
            && !of_kubernetes.iter().chain(&ours).any(|known| taint.key.as_str().starts_with(known))
    };
    if let Some(foreign) = node.taints.iter().find(is_foreign) {
        return Some(found(format!("taint {}", foreign.key), &words(foreign), "none"));
    }
    let mut tags = class.tags.iter().filter_map(|(key, declared)| {
        let is = instance.tags.get(key).filter(|is| *is != declared)?;
        Some(found(format!("tag {key}"), is, declared))
    });
    tags.next()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::pod::TaintEffect;
    use crate::story::{Story, node_class, pool};

    fn with(class: &NodeClass, field: &str, digest: &str) -> NodeClass {
        let mut digests = (*class.spec_digests).clone();
        digests.insert(field.to_owned(), digest.into());
        NodeClass { spec_digests: Arc::new(digests), ..class.clone() }
    }

    fn taint(key: &str) -> Taint {
        Taint { key: key.into(), value: "".into(), effect: TaintEffect::NoSchedule }
    }

    #[test]
    fn a_change_is_told_by_the_names_of_its_fields() {
        let (pool, class) = (pool(), node_class());
        let running = spec_digest(&pool, &class);
        assert!(running.len() <= 256, "the most that a tag holds");
        let class_name = &class.name;
        let tainted = Pool { taints: vec![taint("team")], ..pool.clone() };
        let labelled =
            Pool { labels: [crate::requirement::label("team", "a")].into(), ..tainted.clone() };
        let data = with(&class, "userData", "y");
        let both = with(&data, "kubelet", "k");
        for (pool, class, expected) in [
            (&pool, &class, None),
            (&tainted, &class, Some("taints".to_owned())),
            (&labelled, &class, Some("labels, taints".to_owned())),
            (&pool, &both, Some(format!("kubelet, userData of node class {class_name}"))),
            (&tainted, &data, Some(format!("taints, userData of node class {class_name}"))),
            (
                &pool,
                &with(&class, "new", "1"),
                Some(format!("other fields of node class {class_name}")),
            ),
        ] {
            assert_eq!(changed(&running, pool, class), expected);
        }
        assert!(has_other_labels(&running, &labelled, &class));
        assert!(!has_other_labels(&running, &tainted, &class));
        assert!(!has_other_labels("v1:00", &labelled, &class), "nothing is known of it");
        for unreadable in ["v1:00", "v2:", "v2:zz", "", &running[1..], &running.replace("v2", "v3")]
        {
            assert_eq!(changed(unreadable, &tainted, &class), None, "{unreadable}");
        }
    }

    #[test]
    fn what_a_hand_changed_is_told_and_what_the_cluster_itself_does_is_not() {
        let mut story = Story::new(&["m5.large"], 500, 512);
        story.scale(1);
        story.step(1);
        let node = story.observed.nodes.values().next().expect("launched").clone();
        let instance = story.observed.instances.values().next().expect("launched").clone();
        let told = |change: &dyn Fn(&mut Node, &mut Instance, &mut Pool, &mut NodeClass)| {
            let (mut node, mut instance) = (node.clone(), instance.clone());
            let (mut pool, mut class) = (pool(), node_class());
            change(&mut node, &mut instance, &mut pool, &mut class);
            let spec = spec_digest(&pool, &class);
            instance.tags.insert(tag::SPEC.to_owned(), spec.clone());
            moved(&node, &instance, (&pool, &class), &spec).map(|m| (m.field, m.is, m.declared))
        };
        let said = |field: &str, is: &str, declared: &str| {
            Some((field.to_owned(), is.to_owned(), declared.to_owned()))
        };
        assert_eq!(told(&|_, _, _, _| ()), None);
        assert_eq!(
            told(&|_, _, pool, _| pool.taints.push(taint("team"))),
            said("taint team", "absent", "team=:NoSchedule")
        );
        assert_eq!(
            told(&|node, _, _, _| node.taints.push(taint("mine"))),
            said("taint mine", "mine=:NoSchedule", "none")
        );
        assert_eq!(
            told(&|_, instance, _, class| {
                class.tags = [("team".to_owned(), "a".to_owned())].into();
                instance.tags.insert("team".to_owned(), "b".to_owned());
            }),
            said("tag team", "b", "a")
        );
        assert_eq!(
            told(&|_, instance, _, _| {
                instance.tags.insert(tag::CHANGE.to_owned(), "another".to_owned());
            }),
            None,
            "no class declares it"
        );
        for key in ["node.kubernetes.io/unschedulable", "node.kubernetes.io/disk-pressure"] {
            assert_eq!(told(&|node, _, _, _| node.taints.push(taint(key))), None, "{key}");
        }
    }
}

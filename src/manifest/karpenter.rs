//! Reads Karpenter's objects of every API generation into one model of pools and node classes.
//!
//! `NodePool` and `EC2NodeClass` (v1, v1beta1), `Provisioner` (v1alpha5), `AWSNodeTemplate`
//! (v1alpha1) and `NodeOverlay` (v1alpha1). This module knows the field names and defaults of each
//! generation. Values that Karpenter or its validation rejects are errors here.

mod conversion_annotations;
mod instance_settings;
mod kubelet;
mod node_class;
mod node_overlay;
mod node_pool;
mod provisioner;
mod requirements;
mod selector_terms;
mod spec_digest;
mod template_annotations;

pub(super) use kubelet::{bottlerocket_kubelet, kubelet, milli_percent};
pub(super) use node_class::{node_class, node_template};
pub(super) use node_overlay::node_overlay;
pub(super) use node_pool::node_pool;
pub(super) use provisioner::provisioner;
pub(super) use spec_digest::{canonical, sha256};

use super::collector::{Collector, Definition};
use super::decode::{Field, FieldMap};
use crate::model::desired::{Pool, Severity};
use crate::model::pod::Taint;

/// Maximum weight of a pool.
const WEIGHT_MAX: u32 = 100;

/// Adds a pool to the collector. Provisioners and node pools share a name space, because nodes and
/// plans refer to a pool by name alone.
fn add_pool(pool: Pool, root: &FieldMap<'_>, into: &mut Collector) {
    let pool = Pool { unreadable: root.field.scope.first_failed_field(), ..pool };
    let named = Definition {
        kind: "NodePool",
        name: pool.name.to_string(),
        scope: root.field.scope,
        origin: pool.origin.clone(),
    };
    let same = |a: &Pool, b: &Pool| Pool { origin: b.origin.clone(), ..a.clone() } == *b;
    into.insert(named, |all| &mut all.desired.pools, pool.name.clone(), pool, same);
}

/// Reads a pool's weight; 0 if absent.
fn weight(field: Option<Field<'_>>) -> u32 {
    let Some(field) = field else { return 0 };
    let Some(weight) = field.int::<u32>(1) else { return 0 };
    if weight > WEIGHT_MAX {
        field.error(format_args!("is {weight}, above {WEIGHT_MAX}"), None);
    }
    weight.min(WEIGHT_MAX)
}

/// Reports taints with the same key and effect, which a node cannot carry twice.
fn check_taints(field: &Field<'_>, taints: &[Taint], startup: &[Taint]) {
    let all: Vec<&Taint> = taints.iter().chain(startup).collect();
    for (index, taint) in all.iter().enumerate() {
        let twin = |other: &&&Taint| other.key == taint.key && other.effect == taint.effect;
        if all[..index].iter().any(|other| twin(&other)) {
            field.error(
                format_args!(
                    "has two taints with key `{}` and effect {:?}",
                    taint.key, taint.effect
                ),
                "a node carries each pair of key and effect once".to_owned(),
            );
        }
    }
}

/// Warns of each of these fields that is stated. They have no effect, and `without` says so.
fn warn_unsupported(map: &FieldMap<'_>, fields: &[&'static str], without: &str) {
    for field in fields.iter().filter_map(|&name| map.get(name)) {
        field.warn(format_args!("is not supported: {without}"), None);
    }
}

/// Reports unknown fields of the object itself.
fn finish_root(root: &FieldMap<'_>) {
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
}

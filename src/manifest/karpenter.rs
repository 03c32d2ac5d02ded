//! Karpenter's objects, of every generation → one model of pools and node classes.
//!
//! `NodePool` and `EC2NodeClass` (v1, v1beta1), `Provisioner` (v1alpha5) and `AWSNodeTemplate`
//! (v1alpha1), and `NodeOverlay` (v1alpha1). Knows what each generation calls a setting and which
//! default it has; what Karpenter or its validation refuses is an error here.

mod canonical;
mod kubelet;
mod machine;
mod node_class;
mod node_pool;
mod overlay;
mod provisioner;
mod requirements;

pub(super) use canonical::{canonical, sha256};
pub(super) use kubelet::{kubelet, milli_percent};
pub(super) use node_class::{node_class, node_template};
pub(super) use node_pool::node_pool;
pub(super) use overlay::node_overlay;
pub(super) use provisioner::provisioner;

use super::collect::{Collected, Named};
use super::decode::{Field, Map};
use super::model::Severity;
use super::pool::Pool;
use crate::pod::Taint;

/// Most that a pool may weigh.
const WEIGHT_MAX: u32 = 100;

/// Adds a pool to what was collected. Provisioners and node pools share their names, because nodes
/// and plans name a pool by its name alone.
fn add_pool(pool: Pool, root: &Map<'_>, into: &mut Collected) {
    let pool = Pool { unreadable: root.field.scope.first_failed(), ..pool };
    let named = Named {
        sort: "NodePool",
        name: pool.name.to_string(),
        scope: root.field.scope,
        origin: pool.origin.clone(),
    };
    let same = |a: &Pool, b: &Pool| Pool { origin: b.origin.clone(), ..a.clone() } == *b;
    into.insert(named, |all| &mut all.desired.pools, (pool.name.clone(), pool), same);
}

/// Reads a pool's weight; 0 where none is stated.
fn weight(field: Option<Field<'_>>) -> u32 {
    let Some(field) = field else { return 0 };
    let Some(weight) = field.int::<u32>(1) else { return 0 };
    if weight > WEIGHT_MAX {
        field.error(format_args!("is {weight}, above {WEIGHT_MAX}"), None);
    }
    weight.min(WEIGHT_MAX)
}

/// Notes taints that share key and effect, which a node cannot carry twice.
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

/// Notes what is left over in the object itself.
fn finish_root(root: &Map<'_>) {
    root.ignore(&["apiVersion", "kind", "metadata", "spec", "status"]);
    root.finish(Severity::Warning);
}

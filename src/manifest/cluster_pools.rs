//! Reads the node pools and node classes that the cluster has.
//!
//! With `spec.pools: cluster` they are declared in the API server alone. The readers of files read
//! them. Their place in messages is `cluster:nodepool/general`, because no file has them.

use super::collector::Collector;
use super::decode::ProblemCollector;
use super::live_objects::read_live_object;
use crate::model::code::Code;
use crate::model::desired::{FLEET_FILE, Fleet, Generation, Problem};
use crate::model::ids::Origin;
use crate::model::observed::{ClusterPools, PoolObject};

/// Kinds of pools.
const POOL_KINDS: [&str; 2] = ["NodePool", "Provisioner"];

/// Kinds that describe the nodes of pools.
const NODE_KINDS: [&str; 3] = ["AWSNodeTemplate", "EC2NodeClass", "NodeOverlay"];

/// Adds the objects of `pools` to those of the files, which may declare none of these kinds. `None`
/// means that the pools were not read.
pub(super) fn read(
    pools: Option<&ClusterPools>,
    fleet: &Fleet,
    report: &ProblemCollector,
    into: &mut Collector,
) {
    let setting = fleet.pools_origin.clone().unwrap_or_else(|| Origin::new(FLEET_FILE, 0));
    let declared = declared_objects(into);
    for (kind, name, origin) in &declared {
        report.add(declared_twice((kind, name, origin), pools, &setting));
    }
    let Some(pools) = pools else {
        into.desired.has_unread_pools = true;
        return;
    };
    let mut has_pool = false;
    for object in &pools.objects {
        let (kind, name) = (&object.kind, &object.metadata.name);
        let origin = Origin::in_cluster(kind, name);
        if object.is_being_deleted() {
            let message = "is being deleted in the cluster, so it counts as removed";
            report.add(Problem::warning(origin.clone(), format!("{kind} {name}"), message));
            into.skip(origin, format!("{kind} that is being deleted"));
            continue;
        }
        if !POOL_KINDS.iter().chain(&NODE_KINDS).any(|known| known == kind) {
            // A world file may be edited. Workloads come from files alone.
            into.skip(origin, format!("{kind} among the pools of the cluster"));
            continue;
        }
        // Its error is reported above.
        let is_declared = declared.iter().any(|(of, named, _)| of == kind && named == name);
        if is_declared || read_live_object(&object.to_manifest(), &origin.file, report, into) {
            has_pool |= POOL_KINDS.contains(&kind.as_str());
        } else {
            let message = "has an `apiVersion` that this release does not read";
            let problem = Problem::error(origin, format!("{kind} {name}"), message);
            report.add(problem.hint("upgrade Fleetwright, and run `observe` anew"));
        }
    }
    if !has_pool {
        // Its plan would remove every node.
        let message = "is `cluster`, and the cluster has no NodePool";
        report.add(Problem::error(setting, "spec.pools", message).hint(
            "create one in the cluster, or set spec.pools: repository and declare them in files",
        ).code(Code::NoPool));
    }
}

/// Returns the kind, name and place of each object that the files declare. Node groups of eksctl are
/// not in the API server.
fn declared_objects(into: &Collector) -> Vec<(String, String, Origin)> {
    let desired = &into.desired;
    let pool_kind = |generation| match generation {
        Generation::V1alpha5 => Some(("Provisioner", "AWSNodeTemplate")),
        Generation::V1beta1 | Generation::V1 => Some(("NodePool", "EC2NodeClass")),
        Generation::Eksctl => None,
    };
    let pools = desired.pools.values().filter_map(|pool| {
        let (kind, _) = pool_kind(pool.generation)?;
        Some((kind.to_owned(), pool.name.to_string(), pool.origin.clone()))
    });
    let classes = desired.node_classes.values().filter_map(|class| {
        let (_, kind) = pool_kind(class.generation)?;
        Some((kind.to_owned(), class.name.to_string(), class.origin.clone()))
    });
    let overlays = desired.overlays.values();
    let overlays = overlays
        .map(|overlay| ("NodeOverlay".to_owned(), overlay.name.clone(), overlay.origin.clone()));
    pools.chain(classes).chain(overlays).collect()
}

/// Returns the error of an object of a file where the pools are in the cluster.
fn declared_twice(
    (kind, name, origin): (&str, &str, &Origin),
    pools: Option<&ClusterPools>,
    setting: &Origin,
) -> Problem {
    let is_same = |object: &&PoolObject| object.kind == kind && object.metadata.name == name;
    let twin = pools.and_then(|pools| pools.objects.iter().find(is_same));
    let also = twin.map_or_else(String::new, |_| {
        format!(", which has it as {}", Origin::in_cluster(kind, name).file)
    });
    let message = format!(
        "is declared in a file, and `spec.pools: cluster` ({setting}) reads pools from the cluster{also}"
    );
    let hint = "set spec.pools: repository; or remove it from the files that spec.sources names";
    Problem::error(origin.clone(), format!("{kind} {name}"), message)
        .hint(hint)
        .code(Code::DuplicateObject)
        .other(setting.clone())
}

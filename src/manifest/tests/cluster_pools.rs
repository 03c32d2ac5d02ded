//! Pools that the cluster has.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::*;
use crate::model::desired::{PoolSource, RenderResults};
use crate::model::ids::PoolName;
use crate::model::observed::{ClusterPools, PoolObject};

const POOL: &str = "\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: web }
spec:
  weight: 5
  template:
    spec:
      requirements:
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: own }
";

const CLASS: &str = "\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: { name: own }
spec: { role: r, amiSelectorTerms: [{ alias: al2023@latest }], subnetSelectorTerms: [{ id: subnet-1 }],
  securityGroupSelectorTerms: [{ id: sg-1 }] }
";

fn object(text: &str) -> Json {
    serde_saphyr::from_str(text).expect("YAML")
}

fn pools(objects: &[Json]) -> ClusterPools {
    let read = objects.iter().map(|object| PoolObject::from_json(object).expect("an object"));
    ClusterPools::new(read.collect(), BTreeMap::new())
}

fn fleet() -> Fleet {
    let settings = "apiVersion: fleetwright.dev/v1\nkind: Fleet\nspec:\n  pools: cluster\n";
    let (fleet, problems) = read_fleet(&tree(&[("fleetwright.yaml", settings)]));
    assert_eq!((problems, fleet.pools), (Vec::new(), PoolSource::Cluster));
    fleet
}

fn read_with(files: &[(&str, &str)], pools: Option<ClusterPools>) -> Desired {
    let renderings = RenderResults { pools: pools.map(Arc::new), ..RenderResults::default() };
    read_with_renderings(&tree(files), &fleet(), &renderings)
}

#[test]
fn cluster_pools_read_like_files() {
    let live = read_with(&[], Some(pools(&[object(POOL), object(CLASS)])));
    assert_eq!(lines(&live), [""; 0]);
    let files = read_files(&[("pools.yaml", POOL), ("class.yaml", CLASS)]);
    let (mut pool, mut class) = (live.pools["web"].clone(), live.node_classes["own"].clone());
    assert_eq!(pool.origin.to_string(), "cluster:nodepool/web");
    assert_eq!(class.origin.to_string(), "cluster:ec2nodeclass/own");
    assert!(pool.origin.is_in_cluster() && class.origin.is_in_cluster());
    pool.origin = files.pools["web"].origin.clone();
    class.origin = files.node_classes["own"].origin.clone();
    assert_eq!((&pool, &class), (&files.pools["web"], &files.node_classes["own"]));
}

#[test]
fn files_decide_unless_the_setting_says_otherwise() {
    let renderings =
        RenderResults { pools: Some(Arc::new(pools(&[object(POOL)]))), ..RenderResults::default() };
    let read = read_with_renderings(&tree(&[]), &Fleet::default(), &renderings);
    assert!(read.pools.is_empty() && read.problems.is_empty());
}

#[test]
fn pools_that_were_not_read_are_not_absent() {
    let desired = read_with(&[], None);
    assert!(desired.has_unread_pools && desired.problems.is_empty());
}

#[test]
fn pool_in_both_places_is_an_error_that_names_both() {
    let both = read_with(
        &[("pools.yaml", POOL), ("class.yaml", CLASS)],
        Some(pools(&[object(POOL), object(CLASS)])),
    );
    let hint = "set spec.pools: repository; or remove it from the files that spec.sources names";
    let error = |file: &str, object: &str, twin: &str| {
        format!(
            "error {file}:1: {object}: is declared in a file, and `spec.pools: cluster` \
             (fleetwright.yaml:4) reads pools from the cluster, which has it as {twin}; {hint}"
        )
    };
    assert_eq!(
        lines(&both),
        [
            error("class.yaml", "EC2NodeClass own", "cluster:ec2nodeclass/own"),
            error("pools.yaml", "NodePool web", "cluster:nodepool/web"),
        ]
    );
    // A validation without a world finds it as well.
    let alone = read_with(&[("pools.yaml", POOL), ("class.yaml", CLASS)], None);
    assert_eq!(alone.problems.len(), 2);
}

#[test]
fn pool_that_is_being_deleted_counts_as_removed() {
    let mut gone = object(POOL);
    gone["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let mut other = object(POOL);
    other["metadata"]["name"] = json!("other");
    let desired = read_with(&[], Some(pools(&[gone.clone(), other, object(CLASS)])));
    let names: Vec<&str> = desired.pools.keys().map(PoolName::as_str).collect();
    assert_eq!(names, ["other"]);
    assert_eq!(
        lines(&desired),
        [
            "warning cluster:nodepool/web: NodePool web: is being deleted in the cluster, so it counts \
          as removed"
        ]
    );
    // Without any pool, a plan would remove every node.
    let last = read_with(&[], Some(pools(&[gone, object(CLASS)])));
    assert!(
        lines(&last).iter().any(|line| line.starts_with(
            "error fleetwright.yaml:4: spec.pools: \
         is `cluster`, and the cluster has no NodePool"
        )),
        "{:?}",
        lines(&last)
    );
}

#[test]
fn node_class_that_the_cluster_lacks_is_an_error() {
    let desired = read_with(&[], Some(pools(&[object(POOL)])));
    assert_eq!(
        lines(&desired),
        [
            "error cluster:nodepool/web: NodePool web: refers to the EC2NodeClass `own`, which is not \
          in the cluster; add the EC2NodeClass `own` to the cluster"
        ]
    );
}

#[test]
fn only_pools_are_read_from_the_list_of_pools() {
    let workload = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": "x" },
        "spec": { "replicas": 900 }
    });
    let desired = read_with(&[], Some(pools(&[object(POOL), object(CLASS), workload])));
    assert!(desired.workloads.is_empty() && desired.pools.len() == 1);
    assert_eq!(&*desired.skipped[0].origin.file, "cluster:deployment/x");
}

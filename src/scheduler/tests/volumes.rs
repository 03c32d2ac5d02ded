//! Truth tables of the volume filters, from the Kubernetes documentation and kube-scheduler.

use super::*;
use crate::demand::{PodVolume, Sharing, TopologySource, VolumeProblem};
use crate::model::storage::{EBS_DRIVER, attach_resource};
use crate::scheduler::UnfitReason as No;

/// Returns a node in `zone` with this attach limit for EBS volumes.
pub(super) fn attaching(name: &str, zone: &str, volumes: i64) -> ScheduleNode {
    let mut node = node(name, zone);
    node.allocatable.extended.insert(attach_resource(EBS_DRIVER), volumes);
    node
}

fn mount(name: &str, sharing: Sharing) -> PodVolume {
    PodVolume {
        name: name.to_owned(),
        sharing,
        driver: Some(EBS_DRIVER.to_owned()),
        nodes: vec![Requirements::default()],
        cause: TopologySource::Bound,
        zone_set_by_first_pod: false,
        problem: None,
    }
}

pub(super) fn own() -> PodVolume {
    mount("web/data-*", Sharing::Own)
}

pub(super) fn shared(name: &str) -> PodVolume {
    mount(name, Sharing::Shared)
}

pub(super) fn with(volumes: Vec<PodVolume>) -> PodShape {
    PodShape { volumes, ..pod("a") }
}

#[test]
fn attach_limit_bounds_the_volumes_of_a_node() {
    let no = || Err(vec![No::TooManyVolumes]);
    for (rule, limit, running, asks, expected) in [
        ("room for one", 1, vec![], vec![own()], Ok(())),
        ("room for none", 0, vec![], vec![own()], no()),
        ("no volume is asked for", 0, vec![], vec![], Ok(())),
        ("two of one pod", 1, vec![], vec![own(), own()], no()),
        ("taken by another pod", 1, vec![own()], vec![own()], no()),
        ("taken by a shared one", 1, vec![shared("x")], vec![own()], no()),
        ("shared: attached once", 1, vec![shared("x")], vec![shared("x")], Ok(())),
        ("another shared one", 1, vec![shared("x")], vec![shared("y")], no()),
        ("one shared, one its own", 2, vec![shared("x")], vec![shared("x"), own()], Ok(())),
    ] {
        let mut cluster = Cluster::new(vec![attaching("n", "", limit)]);
        cluster.run(&with(running), "n");
        assert_eq!(cluster.fits(&with(asks), "n"), expected, "{rule}");
    }
}

#[test]
fn attach_limits_apply_only_to_drivers_that_a_node_lists() {
    let mut cluster = Cluster::new(vec![node("unlimited", ""), attaching("limited", "", 0)]);
    assert_eq!(cluster.fitting(&with(vec![own()])), ["unlimited"]);
    let files = PodVolume { driver: Some("efs.csi.aws.com".to_owned()), ..own() };
    assert_eq!(cluster.fitting(&with(vec![files])), ["unlimited", "limited"]);
    let uncounted = PodVolume { driver: None, ..own() };
    assert_eq!(cluster.fitting(&with(vec![uncounted])), ["unlimited", "limited"]);
}

#[test]
fn nodes_added_later_have_attach_limits() {
    let mut cluster = Cluster::new(vec![attaching("n1", "", 1)]);
    cluster.run(&with(vec![own()]), "n1");
    cluster.0.add_node(attaching("n2", "", 1));
    assert_eq!(cluster.fitting(&with(vec![own()])), ["n2"]);
}

#[test]
fn volume_is_detached_with_its_last_pod() {
    let mut cluster = Cluster::new(vec![attaching("n", "", 1)]);
    let (asks, n) = (with(vec![shared("x")]), cluster.index("n"));
    let class = cluster.class(&asks);
    cluster.run_all(&asks, &[("n", 2)]);
    for expected in [Err(vec![No::TooManyVolumes]), Ok(())] {
        assert!(cluster.0.unbind(class, n));
        assert_eq!(cluster.fits(&with(vec![own()]), "n"), expected);
    }
}

#[test]
fn read_write_once_pod_claim_serves_one_pod_of_the_cluster() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let one = with(vec![mount("web/one", Sharing::OnePod)]);
    assert_eq!(cluster.fitting(&one), ["n1", "n2"]);
    cluster.run(&one, "n1");
    for node in ["n1", "n2"] {
        assert_eq!(cluster.fits(&one, node), Err(vec![No::VolumeInUse]), "{node}");
    }
    assert_eq!(cluster.fitting(&with(vec![mount("web/other", Sharing::OnePod)])), ["n1", "n2"]);
}

#[test]
fn named_disk_serves_one_pod_per_node() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let disk = with(vec![mount("vol-1", Sharing::OnePodPerNode)]);
    cluster.run(&disk, "n1");
    assert_eq!(cluster.fitting(&disk), ["n2"]);
}

#[test]
fn pod_with_the_claim_may_be_preempted_on_its_node() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let one = with(vec![mount("web/one", Sharing::OnePod)]);
    cluster.run(&one, "n2");
    let class = cluster.class(&PodShape { priority: 1, ..one });
    let preemption = cluster.0.preempt(class).expect("its priority is higher");
    assert_eq!((cluster.0.name(preemption.node).as_str(), preemption.victims.len()), ("n2", 1));
}

#[test]
fn unreachable_volume_is_not_reported_as_node_affinity() {
    let zonal = |zone| NodeChoice {
        any_of: vec![requires(key::ZONE, zone)],
        without_volumes: Some(vec![Requirements::default()]),
        ..NodeChoice::default()
    };
    let asks = PodShape { nodes: zonal("b"), ..with(vec![own()]) };
    let mut cluster = Cluster::new(vec![node("a1", "a"), node("b1", "b")]);
    assert_eq!(cluster.fits(&asks, "a1"), Err(vec![No::VolumeElsewhere]));
    assert_eq!(cluster.fits(&asks, "b1"), Ok(()));
    let wish = NodeChoice { any_of: vec![requires(key::ZONE, "b")], ..NodeChoice::default() };
    let asks = PodShape { nodes: wish, ..pod("a") };
    assert_eq!(cluster.fits(&asks, "a1"), Err(vec![No::NodeAffinity]));
}

#[test]
fn spreading_counts_the_nodes_that_volumes_forbid() {
    let mut cluster = Cluster::new(vec![node("a1", "a"), node("b1", "b")]);
    let bound = |without_volumes: Option<Vec<Requirements>>| PodShape {
        nodes: NodeChoice {
            any_of: vec![requires(key::ZONE, "b")],
            without_volumes,
            ..NodeChoice::default()
        },
        spread: vec![topology_spread(key::ZONE, 1, "a")],
        ..pod("a")
    };
    cluster.run(&pod("a"), "b1");
    // The pod itself would use zone a, which has no such pod yet; its volume keeps it in b.
    let by_volume = bound(Some(vec![Requirements::default()]));
    assert_eq!(cluster.fits(&by_volume, "b1"), Err(vec![No::Spread]));
    // A node selector for zone b excludes zone a from the count.
    assert_eq!(cluster.fits(&bound(None), "b1"), Ok(()));
}

#[test]
fn pod_with_a_missing_volume_fits_no_node() {
    let waits = PodVolume { problem: Some(VolumeProblem::Missing), driver: None, ..own() };
    let mut tainted = node("n2", "");
    tainted.taints = vec![taint("t", TaintEffect::NoSchedule)];
    let mut cluster = Cluster::new(vec![node("n1", ""), tainted]);
    for node in ["n1", "n2"] {
        let verdict = cluster.fits(&with(vec![waits.clone()]), node);
        assert_eq!(verdict, Err(vec![No::VolumeNotReady]), "{node}");
    }
}

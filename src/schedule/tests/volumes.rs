//! Truth tables of the filters of volumes, after the Kubernetes documentation and kube-scheduler.

use super::*;
use crate::demand::{Cause, Mount, Sharing, Wait};
use crate::schedule::UnfitReason as No;
use crate::storage::{EBS_DRIVER, attach_resource};

/// A node in `zone` that attaches so many EBS volumes.
fn attaching(name: &str, zone: &str, volumes: i64) -> ScheduleNode {
    let mut node = node(name, zone);
    node.allocatable.extended.insert(attach_resource(EBS_DRIVER), volumes);
    node
}

fn mount(name: &str, sharing: Sharing) -> Mount {
    Mount {
        name: name.to_owned(),
        sharing,
        driver: Some(EBS_DRIVER.to_owned()),
        nodes: vec![Requirements::default()],
        cause: Cause::Bound,
        settles: false,
        waits: None,
    }
}

fn own() -> Mount {
    mount("web/data-*", Sharing::Own)
}

fn shared(name: &str) -> Mount {
    mount(name, Sharing::Shared)
}

fn with(volumes: Vec<Mount>) -> PodShape {
    PodShape { volumes, ..pod("a") }
}

#[test]
fn a_node_attaches_so_many_volumes_and_no_more() {
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
        assert_eq!(cluster.verdict(&with(asks), "n"), expected, "{rule}");
    }
}

#[test]
fn only_the_drivers_that_a_node_tells_of_are_limited() {
    let mut cluster = Cluster::new(vec![node("untold", ""), attaching("told", "", 0)]);
    assert_eq!(cluster.fitting(&with(vec![own()])), ["untold"]);
    let files = Mount { driver: Some("efs.csi.aws.com".to_owned()), ..own() };
    assert_eq!(cluster.fitting(&with(vec![files])), ["untold", "told"]);
    let uncounted = Mount { driver: None, ..own() };
    assert_eq!(cluster.fitting(&with(vec![uncounted])), ["untold", "told"]);
}

#[test]
fn nodes_that_come_later_have_their_limits_too() {
    let mut cluster = Cluster::new(vec![attaching("n1", "", 1)]);
    cluster.run(&with(vec![own()]), "n1");
    cluster.0.add_node(attaching("n2", "", 1));
    assert_eq!(cluster.fitting(&with(vec![own()])), ["n2"]);
}

#[test]
fn a_volume_goes_with_the_last_pod_that_uses_it() {
    let mut cluster = Cluster::new(vec![attaching("n", "", 1)]);
    let (asks, n) = (with(vec![shared("x")]), cluster.index("n"));
    let class = cluster.class(&asks);
    cluster.run_all(&asks, &[("n", 2)]);
    for expected in [Err(vec![No::TooManyVolumes]), Ok(())] {
        assert!(cluster.0.unbind(class, n));
        assert_eq!(cluster.verdict(&with(vec![own()]), "n"), expected);
    }
}

#[test]
fn a_claim_for_one_pod_is_used_by_one_pod_of_the_cluster() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let one = with(vec![mount("web/one", Sharing::OnePod)]);
    assert_eq!(cluster.fitting(&one), ["n1", "n2"]);
    cluster.run(&one, "n1");
    for node in ["n1", "n2"] {
        assert_eq!(cluster.verdict(&one, node), Err(vec![No::VolumeInUse]), "{node}");
    }
    assert_eq!(cluster.fitting(&with(vec![mount("web/other", Sharing::OnePod)])), ["n1", "n2"]);
}

#[test]
fn a_disk_that_pods_name_is_used_by_one_pod_of_a_node() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let disk = with(vec![mount("vol-1", Sharing::OnePodPerNode)]);
    cluster.run(&disk, "n1");
    assert_eq!(cluster.fitting(&disk), ["n2"]);
}

#[test]
fn the_pod_that_has_the_claim_may_be_preempted_where_it_runs() {
    let mut cluster = Cluster::new(vec![node("n1", ""), node("n2", "")]);
    let one = with(vec![mount("web/one", Sharing::OnePod)]);
    cluster.run(&one, "n2");
    let class = cluster.class(&PodShape { priority: 1, ..one });
    let preemption = cluster.0.preempt(class).expect("its priority is higher");
    assert_eq!((cluster.0.name(preemption.node).as_str(), preemption.victims.len()), ("n2", 1));
}

#[test]
fn a_volume_in_another_place_is_told_from_a_wish_of_the_pod() {
    let zonal = |zone| NodeChoice {
        any_of: vec![requires(key::ZONE, zone)],
        without_volumes: Some(vec![Requirements::default()]),
        ..NodeChoice::default()
    };
    let asks = PodShape { nodes: zonal("b"), ..with(vec![own()]) };
    let mut cluster = Cluster::new(vec![node("a1", "a"), node("b1", "b")]);
    assert_eq!(cluster.verdict(&asks, "a1"), Err(vec![No::VolumeElsewhere]));
    assert_eq!(cluster.verdict(&asks, "b1"), Ok(()));
    let wish = NodeChoice { any_of: vec![requires(key::ZONE, "b")], ..NodeChoice::default() };
    let asks = PodShape { nodes: wish, ..pod("a") };
    assert_eq!(cluster.verdict(&asks, "a1"), Err(vec![No::NodeAffinity]));
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
        spread: vec![spread("a", key::ZONE, 1)],
        ..pod("a")
    };
    cluster.run(&pod("a"), "b1");
    // The pod itself would go to zone a, which has no such pod yet; its volume keeps it in b.
    let by_volume = bound(Some(vec![Requirements::default()]));
    assert_eq!(cluster.verdict(&by_volume, "b1"), Err(vec![No::Spread]));
    // A wish for zone b leaves zone a out of the count.
    assert_eq!(cluster.verdict(&bound(None), "b1"), Ok(()));
}

#[test]
fn a_pod_whose_volume_is_not_there_fits_nowhere() {
    let waits = Mount { waits: Some(Wait::Missing), driver: None, ..own() };
    let mut tainted = node("n2", "");
    tainted.taints = vec![taint("t", TaintEffect::NoSchedule)];
    let mut cluster = Cluster::new(vec![node("n1", ""), tainted]);
    for node in ["n1", "n2"] {
        let verdict = cluster.verdict(&with(vec![waits.clone()]), node);
        assert_eq!(verdict, Err(vec![No::VolumeNotReady]), "{node}");
    }
}

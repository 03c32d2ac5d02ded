//! Formation of batches.

use super::*;
use crate::apply::wave_plan::{GroupWork, Reader};
use crate::model::ids::GroupName;
use crate::model::reason::KeepReason;
use crate::plan::wire::{Reason, ResourceChange, WaveStep};
use crate::testing::apply::new_node;
use crate::testing::plan::address;
use crate::testing::simulator;

/// A row of a test: a launch if its key begins with `n`, and a removal otherwise.
struct Node {
    key: String,
    group: Option<&'static str>,
    hourly: i64,
    pods: Vec<(&'static str, u32)>,
}

fn node(key: impl Into<String>, hourly: i64, pods: &[(&'static str, u32)]) -> Node {
    Node { key: key.into(), group: Some("a"), hourly, pods: pods.to_vec() }
}

fn is_launch(node: &Node) -> bool {
    node.key.starts_with('n')
}

fn plan_of(nodes: &[Node]) -> Plan {
    let mut plan = Plan::unchanged(&simulator::world().observed());
    for node in nodes {
        let counts = |wanted: bool| {
            let pods = node.pods.iter().filter(|_| wanted);
            pods.map(|(workload, count)| (WorkloadKey::from(*workload), *count)).collect()
        };
        let (launches, hourly) = (is_launch(node), Some(MicroUsd(node.hourly)));
        let row = ExplainRow {
            group: node.group.map(str::to_owned),
            hourly_before: hourly.filter(|_| !launches),
            hourly_after: hourly.filter(|_| launches),
            pods: counts(launches),
            pods_before: counts(!launches),
            ..ExplainRow::new(address(&node.key), Reason::Keep { because: KeepReason::NotOurs })
        };
        let state = new_node("eu-west-1a");
        let change = if launches {
            ResourceChange::launch("web", &node.key, state)
        } else {
            ResourceChange::removal("web", &node.key, state.running_as(&node.key, "n", "u"))
        };
        plan = plan.with_explained_rows([(change, row)]);
    }
    let of = |wanted: bool| {
        let nodes = nodes.iter().filter(move |node| is_launch(node) == wanted);
        nodes.map(|node| address(&node.key)).collect::<Vec<_>>()
    };
    plan.with_wave(WaveStep::Launch, of(true)).with_wave(WaveStep::Retire, of(false))
}

/// Returns the keys of each wave.
fn waves(nodes: &[Node]) -> Vec<String> {
    let plan = plan_of(nodes);
    let waves = in_batches(&plan, Reader::waves(&plan).expect("valid"));
    waves.iter().map(|wave| keys(wave.addresses())).collect()
}

/// Returns the smallest parts of the only replacement: its launches and its removals.
fn parts(nodes: &[Node]) -> Vec<[String; 2]> {
    let plan = plan_of(nodes);
    let waves = Reader::waves(&plan).expect("valid");
    let [WaveWork::Launch(launches), WaveWork::Retire(retires)] = waves.as_slice() else {
        panic!("two waves");
    };
    let mut replacements = replacements(&plan, launches, retires);
    let (_, replacement) = replacements.pop_first().expect("a replacement");
    let parts = replacement.parts().into_iter();
    parts.map(|part| [keys(part.launches), keys(part.removals)]).collect()
}

/// Returns the keys of the unused launches that are needed after these removals. All launches have
/// an instance.
fn needed(nodes: &[Node], removed: &[&str], unused: &[&str]) -> String {
    let plan = plan_of(nodes);
    let waves = Reader::waves(&plan).expect("valid");
    let [removed, unused] =
        [removed, unused].map(|keys| keys.iter().map(|key| address(key)).collect::<Vec<Address>>());
    let progress = Progress {
        launched: waves[0].addresses().collect(),
        unused: unused.iter().collect(),
        removed: removed.iter().collect(),
    };
    keys(needed_launches(&plan, &waves, &progress))
}

fn keys<'a>(addresses: impl IntoIterator<Item = &'a Address>) -> String {
    let key = |address: &Address| address.as_str().split('"').nth(1).expect("a key").to_owned();
    addresses.into_iter().map(key).collect::<Vec<_>>().join(" ")
}

#[test]
fn equal_nodes_are_replaced_three_at_a_time() {
    let pods = &[("api", 2)];
    let old = (0..7).map(|key| node(format!("o{key}"), 10, pods));
    let new = (0..7).map(|key| node(format!("n{key}"), 9, pods));
    let nodes: Vec<Node> = old.chain(new).collect();
    let expected = ["n0 n1 n2", "o0 o1 o2", "n3 n4 n5", "o3 o4 o5", "n6", "o6"];
    assert_eq!(waves(&nodes), expected);
}

#[test]
fn large_plan_has_ten_batches() {
    let pods = &[("api", 2)];
    let old = (10..51).map(|key| node(format!("o{key}"), 10, pods));
    let new = (10..51).map(|key| node(format!("n{key}"), 9, pods));
    let waves = waves(&old.chain(new).collect::<Vec<_>>());
    assert_eq!(waves.len(), 18, "nine batches: {waves:?}");
    assert_eq!(waves[0], "n10 n11 n12 n13 n14");
}

#[test]
fn plan_has_at_most_ten_batches() {
    // Each launch replaces two nodes, so that parts of three nodes are not joined by threes.
    let old = (10..40).map(|key| node(format!("o{key}"), 10, &[("api", 1)]));
    let new = (10..25).map(|key| node(format!("n{key}"), 19, &[("api", 2)]));
    let halved = waves(&old.chain(new).collect::<Vec<_>>());
    assert_eq!(halved.len(), 16, "eight batches: {halved:?}");
    assert_eq!(halved[..2], ["n10 n11", "o10 o11 o12 o13"]);
    // Further removals count too.
    let pods = &[("api", 2)];
    let old = (10..40).map(|key| node(format!("o{key}"), 10, pods));
    let new = (10..40).map(|key| node(format!("n{key}"), 9, pods));
    let alone = Node { group: None, ..node("a", 10, pods) };
    let nodes: Vec<Node> = old.chain(new).chain([alone]).collect();
    let with_other = waves(&nodes);
    assert_eq!(with_other.len(), 17, "eight batches and the other node: {with_other:?}");
    assert_eq!(waves(&nodes[..60]).len(), 20, "ten batches");
}

#[test]
fn small_plan_and_plan_without_replacement_stay_as_they_are() {
    let pods = &[("api", 2)];
    let small = [node("o1", 10, pods), node("o2", 10, pods), node("n1", 15, &[("api", 4)])];
    assert_eq!(waves(&small), ["n1", "o1 o2"]);
    let free = |node: Node| Node { group: None, ..node };
    let old = (0..9).map(|key| free(node(format!("o{key}"), 10, pods)));
    let nodes: Vec<Node> = old.chain([free(node("n1", 15, pods))]).collect();
    assert_eq!(waves(&nodes), ["n1", "o0 o1 o2 o3 o4 o5 o6 o7 o8"]);
}

#[test]
fn launch_for_three_nodes_is_one_part_with_them() {
    let old = (0..6).map(|key| node(format!("o{key}"), 10, &[("api", 1)]));
    let new = (0..2).map(|key| node(format!("n{key}"), 30, &[("api", 3)]));
    let nodes: Vec<Node> = old.chain(new).collect();
    let expected = [["n0", "o0 o1 o2"], ["n1", "o3 o4 o5"]].map(|part| part.map(str::to_owned));
    assert_eq!(parts(&nodes), expected);
}

#[test]
fn replacement_by_fewer_dearer_nodes_is_one_part() {
    let old = (0..6).map(|key| node(format!("o{key}"), 100, &[("api", 5)]));
    let new = (0..5).map(|key| node(format!("n{key}"), 105, &[("api", 6)]));
    let nodes: Vec<Node> = old.chain(new).collect();
    assert_eq!(waves(&nodes), ["n0 n1 n2 n3 n4", "o0 o1 o2 o3 o4 o5"]);
    // Each cheaper launch pays for itself.
    let old = (0..6).map(|key| node(format!("o{key}"), 100, &[("api", 5)]));
    let new = (0..5).map(|key| node(format!("n{key}"), 99, &[("api", 6)]));
    let nodes: Vec<Node> = old.chain(new).collect();
    assert_eq!(waves(&nodes), ["n0 n1 n2", "o0 o1 o2", "n3 n4", "o3 o4 o5"]);
}

#[test]
fn whole_replacement_that_costs_more_is_split_nevertheless() {
    let pods = &[("api", 2)];
    let old = (0..4).map(|key| node(format!("o{key}"), 10, pods));
    let new = (0..4).map(|key| node(format!("n{key}"), 11, pods));
    let parts = parts(&old.chain(new).collect::<Vec<_>>());
    assert_eq!(parts.len(), 4, "{parts:?}");
}

#[test]
fn removal_takes_the_launches_with_places_for_its_pods() {
    let nodes = [
        node("o1", 20, &[("a", 1)]),
        node("o2", 10, &[("b", 1)]),
        node("o3", 10, &[("a", 1), ("b", 1)]),
        node("n1", 9, &[("b", 2)]),
        node("n2", 10, &[("a", 2)]),
    ];
    let expected = [["n2", "o1"], ["n1", "o2"], ["", "o3"]].map(|part| part.map(str::to_owned));
    assert_eq!(parts(&nodes), expected);
}

#[test]
fn places_on_nodes_that_stay_need_no_launch() {
    // Two of the six pods go to nodes that stay, or end.
    let old = (0..3).map(|key| node(format!("o{key}"), 10, &[("api", 2)]));
    let nodes: Vec<Node> = old.chain([node("n1", 15, &[("api", 4)])]).collect();
    let expected = [["", "o0"], ["n1", "o1"], ["", "o2"]].map(|part| part.map(str::to_owned));
    assert_eq!(parts(&nodes), expected);
}

#[test]
fn launches_for_new_pods_come_first() {
    let pods = &[("api", 2)];
    // Three of the eight launches of the group are for six new pods.
    let old = (0..5).map(|key| node(format!("o{key}"), 10, pods));
    let new = (0..8).map(|key| node(format!("n{key}"), 9, pods));
    let growth = Node { group: None, ..node("n9", 9, &[("new", 2)]) };
    let nodes: Vec<Node> = old.chain(new).chain([growth]).collect();
    let expected = ["n0 n1 n2 n3 n4 n5 n9", "o0 o1 o2", "n6 n7", "o3 o4"];
    assert_eq!(waves(&nodes), expected);
}

#[test]
fn launches_for_new_pods_and_for_removed_nodes_are_needed() {
    let pods = &[("api", 2)];
    let nodes = |old: usize, new: usize| -> Vec<Node> {
        let old = (0..old).map(|key| node(format!("o{key}"), 10, pods));
        old.chain((0..new).map(|key| node(format!("n{key}"), 9, pods))).collect()
    };
    // Two of the five launches are for new pods.
    let growth = nodes(3, 5);
    assert_eq!(needed(&growth, &[], &["n0", "n1", "n2", "n3", "n4"]), "n0 n1");
    assert_eq!(needed(&growth, &[], &["n2", "n3", "n4"]), "");
    // The pods of a removed node took a place that new pods need.
    assert_eq!(needed(&growth, &["o0"], &["n1", "n2", "n3", "n4"]), "n1 n2");
    let replacement = nodes(3, 3);
    assert_eq!(needed(&replacement, &[], &["n0", "n1", "n2"]), "");
    assert_eq!(needed(&replacement, &["o0"], &["n1", "n2"]), "");
    assert_eq!(needed(&replacement, &["o0", "o1"], &["n1", "n2"]), "n1");
}

#[test]
fn removals_without_replacement_come_last() {
    let pods = &[("api", 2)];
    let old = (0..4).map(|key| node(format!("o{key}"), 10, pods));
    let new = (0..4).map(|key| node(format!("n{key}"), 9, pods));
    let alone = Node { group: None, ..node("a", 10, pods) };
    let nodes: Vec<Node> = old.chain(new).chain([alone]).collect();
    assert_eq!(waves(&nodes), ["n0 n1 n2", "o0 o1 o2", "n3", "o3", "a"]);
}

#[test]
fn node_without_counted_pods_needs_all_launches() {
    let nodes = [
        node("o1", 20, &[]),
        node("o2", 10, &[("api", 2)]),
        node("n1", 9, &[("api", 2)]),
        node("n2", 9, &[("other", 2)]),
    ];
    // The launch for the other workload is growth: no removed node runs it.
    assert_eq!(parts(&nodes), [["n1", "o2"], ["", "o1"]].map(|part| part.map(str::to_owned)));
    let nodes = [node("o1", 20, &[]), node("o2", 10, &[]), node("n1", 9, &[]), node("n2", 9, &[])];
    assert_eq!(parts(&nodes), [["n1 n2", "o1"], ["", "o2"]].map(|part| part.map(str::to_owned)));
}

#[test]
fn launches_of_auto_scaling_groups_precede_all_batches() {
    let (row, name) = (address("n1"), GroupName::from("asg"));
    let plan = plan_of(&[node("o1", 10, &[("api", 2)]), node("n1", 9, &[("api", 2)])]);
    let mut waves = Reader::waves(&plan).expect("valid");
    let group = GroupWork { address: &row, name: &name, from: 1, to: 2, known: BTreeSet::new() };
    let WaveWork::Launch(launches) = &mut waves[0] else { panic!("a launch wave") };
    launches[0].group = Some(group);
    let [WaveWork::Launch(launches), WaveWork::Retire(retires)] = waves.as_slice() else {
        panic!("two waves");
    };
    let expected = Batch { launches: Vec::new(), removals: vec![retires[0].address] };
    assert_eq!(batches(&plan, launches, retires), [expected]);
}

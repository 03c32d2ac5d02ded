//! A rehearsal of the migration from Karpenter: moto has the instances, the embedded Kubernetes the
//! objects that Karpenter made, and the real commands run in the order of the guide.

mod world;

use serde_json::{Value as Json, json};

use super::cluster::runtime;
use super::kubelets::get;
use super::moto::Moto;
use world::{Generation, Rehearsal};

/// Returns the rows of a plan that are not empty, as pairs of address and actions.
fn changes(plan: &Json) -> Vec<(String, String)> {
    let rows = plan["resource_changes"].as_array().expect("rows").iter();
    let all = rows.map(|row| {
        let address = row["address"].as_str().expect("an address").to_owned();
        (address, row["change"]["actions"].to_string())
    });
    all.filter(|(_, actions)| actions != r#"["no-op"]"#).collect()
}

fn addresses(plan: &Json) -> Vec<String> {
    let rows = plan["resource_changes"].as_array().expect("rows").iter();
    let mut all: Vec<String> =
        rows.map(|row| row["address"].as_str().expect("an address").to_owned()).collect();
    all.sort();
    all
}

/// Runs the migration of `generation` and the way back.
fn rehearse(generation: Generation) {
    let Some(moto) = Moto::start() else { return };
    runtime().block_on(async {
        let mut rehearsal = Rehearsal::start(moto, generation).await;
        let karpenter = rehearsal.karpenter_instances().await;
        let [first, _] = &karpenter[..] else { panic!("{karpenter:?}") };

        // Preview while Karpenter runs: nothing is planned for its nodes, and nothing is adopted.
        let saved = rehearsal.path("world.json");
        rehearsal.expect(0, &["observe", "--out", &saved]).await;
        let preview = rehearsal.plan().await;
        assert_eq!(changes(&preview), [], "{generation:?}");
        let foreign = addresses(&preview);
        assert!(foreign.iter().all(|row| row.starts_with("kubernetes_node.")), "{foreign:?}");
        let refused = rehearsal.expect(5, &["adopt", "--auto-approve"]).await;
        assert!(refused.contains("karpenter runs: kube-system/karpenter"), "{refused}");
        rehearsal.stop_karpenter().await;

        // Adoption writes tags only.
        let before = rehearsal.objects().await;
        let adopted = rehearsal.expect(0, &["adopt", "--auto-approve"]).await;
        assert!(adopted.contains("The plan after that: no changes."), "{adopted}");
        assert!(adopted.contains("Adopt complete! Nodes: 2 adopted."), "{adopted}");
        assert_eq!(rehearsal.objects().await, before, "no Node and no Pod is changed");
        rehearsal.release_nodes().await;
        assert_eq!(rehearsal.owned_nodes().await, [""; 0], "no Node has an owner or a finalizer");
        let plan = rehearsal.plan().await;
        assert_eq!(changes(&plan), [], "{generation:?}");
        let expected = ["ec2_instance.general[\"0\"]", "ec2_instance.general[\"1\"]"];
        assert_eq!(addresses(&plan), expected);
        assert_eq!(rehearsal.karpenter_instances().await, karpenter, "no instance is replaced");

        // A further replica launches a node beside the adopted ones.
        rehearsal.commit(3);
        rehearsal.apply("1 to add, 0 to change, 0 to destroy").await;
        rehearsal.settle().await;
        assert_eq!(changes(&rehearsal.plan().await), [], "{generation:?}");
        assert_eq!(rehearsal.nodes().await.len(), 3);
        assert_eq!(rehearsal.created(), 4, "no pod is evicted until the fleet shrinks");

        // One replica less empties an adopted node but for a small pod: it is drained and
        // terminated, and the Node is gone.
        rehearsal.commit(2);
        rehearsal.delete_replica_on(&first.node).await;
        rehearsal.apply("0 to add, 0 to change, 1 to destroy").await;
        rehearsal.settle().await;
        assert_eq!(rehearsal.created(), 5, "the small pod moved");
        let nodes = rehearsal.nodes().await;
        assert!(nodes.len() == 2 && !nodes.contains(&first.node), "{nodes:?}");
        assert_eq!(rehearsal.state_of(&first.id).await, "terminated");
        assert_eq!(changes(&rehearsal.plan().await), [], "{generation:?}");

        // The way back: tags and finalizers. Karpenter finds its node as it was.
        let tags = &karpenter[1].tags;
        rehearsal.go_back().await;
        let back = rehearsal.karpenter_instances().await;
        assert_eq!((back.len(), &back[0].tags), (1, tags), "the tags of Karpenter are unchanged");
        let node = format!("/api/v1/nodes/{}", karpenter[1].node);
        let node = get(&rehearsal.kubernetes, &node).await;
        assert_eq!(node["metadata"]["finalizers"], json!(["karpenter.sh/termination"]));
        let plan = rehearsal.plan().await;
        assert_eq!(changes(&plan), [], "{generation:?}");
        let found = addresses(&plan);
        assert!(found.contains(&format!("kubernetes_node.{}", karpenter[1].node)), "{found:?}");
        // A second adoption finds a free key.
        rehearsal.expect(0, &["adopt", "--auto-approve"]).await;
        assert_eq!(changes(&rehearsal.plan().await), [], "{generation:?}");
    });
}

#[test]
fn nodes_of_karpenter_v1_are_adopted_and_given_back() {
    rehearse(Generation::V1);
}

#[test]
fn nodes_of_karpenter_v1beta1_are_adopted_and_given_back() {
    rehearse(Generation::V1beta1);
}

#[test]
fn nodes_of_a_provisioner_are_adopted_and_given_back() {
    rehearse(Generation::V1alpha5);
}

//! Taking over what Karpenter left, and the guides that say how.

use std::fs;
use std::path::Path;

use serde_json::{Value as Json, json};

use crate::binary::Workspace;

const WORLD: &str = "world/world.json";

/// Returns the quickstart as it is once everything is applied, with nodes that Karpenter made.
fn left_by_karpenter() -> Workspace {
    let place = Workspace::example("quickstart");
    let applied = place.run(&["apply", ".", "--auto-approve"]);
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
    change(&place, |world| {
        // Both are parts of one value.
        let mut nodes = world["nodes"].take();
        for node in nodes.as_object_mut().expect("nodes").values_mut() {
            let labels = node["labels"].as_object_mut().expect("labels");
            labels.remove("fleetwright.dev/key");
            let pool = labels["karpenter.sh/nodepool"].clone();
            let id = node["instance"].as_str().expect("an instance").to_owned();
            world["instances"][&id]["tags"] = json!({ "karpenter.sh/nodepool": pool });
        }
        world["nodes"] = nodes;
    });
    place
}

fn change(place: &Workspace, how: impl FnOnce(&mut Json)) {
    let mut world: Json = serde_json::from_str(&place.read(WORLD)).expect("a world");
    how(&mut world);
    place.write(WORLD, &world.to_string());
}

fn tags(place: &Workspace) -> Vec<Json> {
    let world: Json = serde_json::from_str(&place.read(WORLD)).expect("a world");
    let instances = world["instances"].as_object().expect("instances").values();
    let running = instances.filter(|instance| instance["state"] == "running");
    running.map(|instance| instance["tags"].clone()).collect()
}

#[test]
fn karpenter_nodes_are_adopted_and_first_plan_is_empty() {
    let place = left_by_karpenter();
    let before: Json = serde_json::from_str(&place.read(WORLD)).expect("a world");
    let plan = place.run(&["plan", "--concise"]);
    assert_eq!(plan.out.matches("ec2_instance.foreign[").count(), 3, "{}", plan.out);
    let looked = place.run(&["adopt"]);
    assert_eq!(looked.code, Some(5), "{}{}", looked.out, looked.err);
    assert!(looked.out.contains("~ ec2_instance.general[\"0\"]"), "{}", looked.out);
    assert!(looked.out.contains("The plan after that: no changes."), "{}", looked.out);
    assert!(looked.err.contains("pass --approved-digest sha256:"), "{}", looked.err);
    let (_, digest) = looked.out.trim().rsplit_once("  ").expect("a digest");
    let stale = place.run(&["adopt", "--approved-digest", &format!("sha256:{:064}", 0)]);
    assert_eq!(stale.code, Some(3), "{}", stale.err);
    let done = place.run(&["adopt", "--approved-digest", digest]);
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    assert!(done.out.contains("Adopt complete! Nodes: 3 adopted."), "{}", done.out);
    assert!(done.out.contains("No changes. Your infrastructure matches"), "{}", done.out);
    for tags in tags(&place) {
        assert_eq!(tags["fleetwright.dev/cluster"], "quickstart");
        assert_eq!(tags["fleetwright.dev/pool"], tags["karpenter.sh/nodepool"]);
    }
    let after: Json = serde_json::from_str(&place.read(WORLD)).expect("a world");
    for same in ["nodes", "pods"] {
        assert_eq!(before[same], after[same], "{same} are as they were");
    }
    let again = place.run(&["adopt"]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.out.contains("No changes. There is no node to adopt."), "{}", again.out);
    let plan = place.run(&["plan", "--detailed-exitcode"]);
    assert_eq!(plan.code, Some(0), "{}", plan.out);
}

#[test]
fn ambiguous_nodes_are_not_adopted_and_the_reason_is_shown() {
    let place = left_by_karpenter();
    change(&place, |world| {
        let nodes = world["nodes"].as_object_mut().expect("nodes");
        let mut nodes = nodes.values_mut();
        let first = nodes.next().expect("a node");
        first["labels"]["karpenter.sh/nodepool"] = json!("other");
        let second = nodes.next().expect("a node");
        second["labels"].as_object_mut().expect("labels").remove("karpenter.sh/nodepool");
        let third = nodes.next().expect("a node")["instance"].as_str().expect("id").to_owned();
        world["instances"][&third]["tags"] =
            json!({ "fleetwright.dev/cluster": "elsewhere", "fleetwright.dev/pool": "general" });
    });
    let left = place.run(&["adopt", "--auto-approve"]);
    assert_eq!(left.code, Some(0), "{}", left.err);
    for why in [
        "its pool `other` is not declared in the repository",
        "it carries the label of no pool",
        "its instance carries the tag of cluster `elsewhere`",
        "No changes.",
    ] {
        assert!(left.out.contains(why), "{why}: {}", left.out);
    }
}

#[test]
fn nodes_of_running_karpenter_are_not_adopted() {
    let place = left_by_karpenter();
    let mut world: Json = serde_json::from_str(&place.read(WORLD)).expect("a world");
    world.as_object_mut().expect("an object").remove("sim");
    let karpenter = json!({
        "namespace": "kube-system", "name": "karpenter", "kind": "Deployment", "replicas": 2
    });
    world["workloads"].as_array_mut().expect("workloads").push(karpenter);
    place.write("seen.json", &world.to_string());
    let refused = place.run(&["adopt", "--world", "seen.json", "--auto-approve"]);
    assert_eq!(refused.code, Some(5), "{}{}", refused.out, refused.err);
    assert!(refused.out.contains("! karpenter runs: kube-system/karpenter, 2 replicas"));
    assert!(refused.err.contains("scale deployment karpenter --replicas=0"), "{}", refused.err);
    let listed = place.run(&["adopt", "--world", "seen.json", "--format", "json"]);
    let listed: Json = serde_json::from_str(&listed.out).expect("JSON");
    assert_eq!(listed["rows"].as_array().map(Vec::len), Some(3));
    assert_eq!(listed["competing_autoscalers"][0]["kind"], "karpenter");
    assert_eq!(listed["contested"], true);
    let digest = listed["digest"].as_str().expect("a digest");
    assert!(refused.out.contains(digest), "{}", refused.out);
    // What cannot change is not changed, whoever approves it.
    world["workloads"].as_array_mut().expect("workloads").pop();
    place.write("seen.json", &world.to_string());
    let refused = place.run(&["adopt", "--world", "seen.json", "--auto-approve"]);
    assert_eq!(refused.code, Some(5), "{}{}", refused.out, refused.err);
}

fn guide(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/migrate").join(name);
    fs::read_to_string(path).expect("a guide")
}

#[test]
fn owners_are_deleted_after_release_without_their_nodes() {
    let text = guide("karpenter.md");
    let deletes: Vec<(usize, &str)> = text.match_indices("kubectl delete ").collect();
    assert!(deletes.len() > 1, "{deletes:?}");
    for (at, _) in &deletes {
        let line = text[*at..].lines().next().expect("a line");
        assert!(line.contains("--cascade=orphan"), "{line}");
    }
    let released = text.find("kubectl patch node ").expect("nodes are released");
    assert!(released < deletes[0].0, "nodes are released first");
    let served = text.find("**From then on**").expect("a step");
    assert!(released < served, "nodes are released before anything removes one");
    let before = &text[..released];
    // Others' owners and finalizers stay, and so do nodes that are not ours.
    for part in [
        "ownerReferences: (.metadata.ownerReferences // [] | map(select(.kind != \"NodeClaim\")))",
        "map(select(. != \"karpenter.sh/termination\"))",
        "Name=tag:fleetwright.dev/cluster,Values=CLUSTER",
    ] {
        assert!(before.contains(part), "{part}");
    }
    assert!(!text.contains("\"finalizers\":null"));
}

/// Returns the settings that a guide shows, with `group` for the name that it leaves open.
fn settings(name: &str, group: &str) -> String {
    let text = guide(name);
    let (_, rest) = text.split_once("```yaml\n").expect("settings");
    let (yaml, _) = rest.split_once("```").expect("an end");
    let lines: Vec<&str> =
        yaml.lines().map(|line| line.strip_prefix("   ").unwrap_or(line)).collect();
    lines.join("\n").replace("GROUP", group)
}

#[test]
fn group_is_resized_after_cluster_autoscaler_is_removed() {
    let place = Workspace::example("nodegroups");
    let managed = place.read("fleetwright.yaml");
    let unmanaged = managed.replace("  groups:\n    web: { manage: true }\n", "");
    assert_ne!(managed, unmanaged);
    let tags = ["k8s.io/cluster-autoscaler/enabled", "k8s.io/cluster-autoscaler/workshop"];
    let of_web = |world: &mut Json, change: &dyn Fn(&mut serde_json::Map<String, Json>)| {
        let mut groups = world["groups"].as_object_mut().expect("groups").values_mut();
        let is_web = |group: &&mut Json| group["tags"]["alpha.eksctl.io/nodegroup-name"] == "web";
        let web = groups.find(is_web).expect("the group");
        change(web["tags"].as_object_mut().expect("tags"));
    };
    place.write("fleetwright.yaml", &unmanaged);
    change(&place, |world| {
        of_web(world, &|held| held.extend(tags.map(|tag| (tag.to_owned(), json!("true")))));
        let running = json!({ "namespace": "kube-system", "name": "cluster-autoscaler",
            "kind": "Deployment", "replicas": 1 });
        world["workloads"].as_array_mut().expect("workloads").push(running);
    });
    let is_held = |why: &str| {
        let plan = place.run(&["plan"]);
        assert!(plan.out.contains("group web is observe-only"), "{why}: {}", plan.out);
        assert!(plan.out.contains(why), "{why}: {}", plan.out);
    };
    is_held("`spec.groups.web: { manage: true }`");
    // In the order of the guide, but for what it does first: each is needed.
    place.write(
        "fleetwright.yaml",
        &format!("{unmanaged}{}", settings("cluster-autoscaler.md", "web").replace("spec:\n", "")),
    );
    for tag in tags {
        is_held(&format!("its tag {tag} hands it to Cluster Autoscaler"));
        change(&place, |world| of_web(world, &|held| drop(held.remove(tag))));
    }
    is_held("kube-system/cluster-autoscaler");
    change(&place, |world| world["workloads"].as_array_mut().expect("workloads").clear());
    let plan = place.run(&["plan"]);
    assert!(!plan.out.contains("group web is observe-only"), "{}", plan.out);
    assert!(plan.out.contains("Plan: 4 to add, 1 to change, 0 to destroy."), "{}", plan.out);
}

/// Returns the commands of a guide that are this program's.
fn commands(name: &str) -> Vec<Vec<String>> {
    let text = guide(name);
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("fleetwright "));
    // The cluster is an embedded one here.
    let words = |line: &str| line.replace("--world live", "--world sim:world");
    lines.map(|line| words(line).split(' ').map(str::to_owned).collect()).collect()
}

#[test]
fn guide_commands_behave_as_documented() {
    for (guide, place, last) in [
        ("karpenter.md", left_by_karpenter(), "No changes. Your infrastructure matches"),
        ("cluster-autoscaler.md", Workspace::example("nodegroups"), "Plan: "),
    ] {
        let commands = commands(guide);
        assert!(commands.len() > 2, "{guide}");
        let mut out = String::new();
        for command in commands {
            let ran = place.run(&command);
            assert_eq!(ran.code, Some(0), "{guide}: {command:?}\n{}{}", ran.out, ran.err);
            out = ran.out;
        }
        assert!(out.contains(last), "{guide}: {out}");
    }
}

//! Adoption of nodes from Karpenter, and the migration guides.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value as Json, json};

use crate::binary::Workspace;

const WORLD: &str = "world/world.json";

/// Returns the applied quickstart, with nodes that Karpenter launched.
fn applied_by_karpenter() -> Workspace {
    let workspace = Workspace::example("quickstart");
    let applied = workspace.run(&["apply", ".", "--auto-approve"]);
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
    edit_world(&workspace, |world| {
        // `nodes` and `instances` are parts of one value, so `nodes` is taken out of it.
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
    workspace
}

fn edit_world(workspace: &Workspace, edit: impl FnOnce(&mut Json)) {
    let mut world: Json = serde_json::from_str(&workspace.read(WORLD)).expect("a world");
    edit(&mut world);
    workspace.write(WORLD, &world.to_string());
}

fn instance_tags(workspace: &Workspace) -> Vec<Json> {
    let world: Json = serde_json::from_str(&workspace.read(WORLD)).expect("a world");
    let instances = world["instances"].as_object().expect("instances").values();
    let running = instances.filter(|instance| instance["state"] == "running");
    running.map(|instance| instance["tags"].clone()).collect()
}

#[test]
fn karpenter_nodes_are_adopted_and_first_plan_is_empty() {
    let workspace = applied_by_karpenter();
    let before: Json = serde_json::from_str(&workspace.read(WORLD)).expect("a world");
    let plan = workspace.run(&["plan", "--format", "json"]);
    let plan: Json = serde_json::from_str(&plan.out).expect("a plan");
    let rows = plan["resource_changes"].as_array().expect("rows").iter();
    let is_foreign = |row: &&Json| row["address"].to_string().contains("ec2_instance.foreign[");
    assert_eq!(rows.filter(is_foreign).count(), 3, "{plan}");
    let preview = workspace.run(&["adopt"]);
    assert_eq!(preview.code, Some(5), "{}{}", preview.out, preview.err);
    assert!(preview.out.contains("~ ec2_instance.general[\"0\"]"), "{}", preview.out);
    assert!(preview.out.contains("The plan after that: no changes."), "{}", preview.out);
    assert!(preview.err.contains("pass --approved-digest sha256:"), "{}", preview.err);
    let (_, digest) = preview.out.trim().rsplit_once("  ").expect("a digest");
    let stale = workspace.run(&["adopt", "--approved-digest", &format!("sha256:{:064}", 0)]);
    assert_eq!(stale.code, Some(3), "{}", stale.err);
    let done = workspace.run(&["adopt", "--approved-digest", digest]);
    assert_eq!(done.code, Some(0), "{}{}", done.out, done.err);
    assert!(done.out.contains("Adopt complete! Nodes: 3 adopted."), "{}", done.out);
    let last = "Plan: 0 to add, 0 to change, 0 to destroy. 1 pod unschedulable.";
    assert!(done.out.contains(last), "{}", done.out);
    for instance_tags in instance_tags(&workspace) {
        assert_eq!(instance_tags["fleetwright.dev/cluster"], "quickstart");
        assert_eq!(instance_tags["fleetwright.dev/pool"], instance_tags["karpenter.sh/nodepool"]);
    }
    let after: Json = serde_json::from_str(&workspace.read(WORLD)).expect("a world");
    for same in ["nodes", "pods"] {
        assert_eq!(before[same], after[same], "{same} are unchanged");
    }
    let again = workspace.run(&["adopt"]);
    assert_eq!(again.code, Some(0), "{}", again.err);
    assert!(again.out.contains("No changes. There is no node to adopt."), "{}", again.out);
    let plan = workspace.run(&["plan", "--detailed-exitcode"]);
    assert_eq!(plan.code, Some(0), "{}", plan.out);
}

#[test]
fn ambiguous_nodes_are_not_adopted_and_the_reason_is_shown() {
    let workspace = applied_by_karpenter();
    edit_world(&workspace, |world| {
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
    let adopted = workspace.run(&["adopt", "--auto-approve"]);
    assert_eq!(adopted.code, Some(0), "{}", adopted.err);
    for reason in [
        "its pool `other` is not declared in the repository",
        "it carries the label of no pool",
        "its instance carries the tag of cluster `elsewhere`",
        "No changes.",
    ] {
        assert!(adopted.out.contains(reason), "{reason}: {}", adopted.out);
    }
}

#[test]
fn nodes_of_running_karpenter_are_not_adopted() {
    let workspace = applied_by_karpenter();
    let mut world: Json = serde_json::from_str(&workspace.read(WORLD)).expect("a world");
    world.as_object_mut().expect("an object").remove("sim");
    let karpenter = json!({
        "namespace": "kube-system", "name": "karpenter", "kind": "Deployment", "replicas": 2
    });
    world["workloads"].as_array_mut().expect("workloads").push(karpenter);
    workspace.write("seen.json", &world.to_string());
    let refused = workspace.run(&["adopt", "--world", "seen.json", "--auto-approve"]);
    assert_eq!(refused.code, Some(5), "{}{}", refused.out, refused.err);
    assert!(refused.out.contains("! karpenter runs: kube-system/karpenter, 2 replicas"));
    assert!(refused.err.contains("scale deployment karpenter --replicas=0"), "{}", refused.err);
    let listed = workspace.run(&["adopt", "--world", "seen.json", "--format", "json"]);
    let listed: Json = serde_json::from_str(&listed.out).expect("JSON");
    assert_eq!(listed["rows"].as_array().map(Vec::len), Some(3));
    assert_eq!(listed["competing_autoscalers"][0]["kind"], "karpenter");
    assert_eq!(listed["contested"], true);
    let digest = listed["digest"].as_str().expect("a digest");
    assert!(refused.out.contains(digest), "{}", refused.out);
    // A world file is read-only, so an approved adoption is refused as well.
    world["workloads"].as_array_mut().expect("workloads").pop();
    workspace.write("seen.json", &world.to_string());
    let refused = workspace.run(&["adopt", "--world", "seen.json", "--auto-approve"]);
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
    let release_at = text.find("kubectl patch node ").expect("a step that releases nodes");
    assert!(release_at < deletes[0].0, "nodes are released before their owners are deleted");
    let serve_at = text.find("**From then on**").expect("a step that starts the controller");
    assert!(release_at < serve_at, "nodes are released before the controller may remove nodes");
    let before = &text[..release_at];
    // Owners and finalizers of other controllers stay, and unmanaged nodes are unchanged.
    for part in [
        "map(select(.apiVersion | startswith(\"karpenter.sh/\") | not))",
        "map(select(. != \"karpenter.sh/termination\"))",
        "Name=tag:fleetwright.dev/cluster,Values=CLUSTER",
    ] {
        assert!(before.contains(part), "{part}");
    }
    assert!(!text.contains("\"finalizers\":null"));
}

/// Returns the filters for `jq` in the guide, with the input that each needs.
fn jq_filters() -> Vec<String> {
    let text = guide("karpenter.md");
    let parts = text.split("jq --raw-output --rawfile ours ours.txt '").skip(1);
    parts.map(|part| part.split('\'').next().expect("an end").to_owned()).collect()
}

/// Runs a filter of the guide over `kubectl get --output json`. Returns its rows of name and patch.
fn run_jq(workspace: &Workspace, filter: &str, items: &Json) -> Vec<(String, Json)> {
    workspace.write("ours.txt", "i-1\ni-2\n");
    workspace.write("items.json", &json!({ "items": items }).to_string());
    let output = Command::new("jq")
        .args(["--raw-output", "--rawfile", "ours", "ours.txt", filter, "items.json"])
        .current_dir(workspace.root())
        .output()
        .expect("jq runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let row = |line: &str| {
        let (name, patch) = line.split_once('\t').expect("two columns");
        (name.to_owned(), serde_json::from_str(patch).expect("a patch"))
    };
    text(&output.stdout).lines().map(row).collect()
}

#[test]
fn release_of_the_guide_keeps_other_owners_and_finalizers() {
    if Command::new("jq").arg("--version").output().is_err() {
        return;
    }
    let workspace = Workspace::empty();
    let filters = jq_filters();
    let [nodes, claims] = &filters[..] else { panic!("{filters:?}") };
    let node = |name: &str, id: &str, owners: &[(&str, &str)], finalizers: &[&str]| {
        let owner = |(version, kind): &(&str, &str)| json!({ "apiVersion": version, "kind": kind, "name": "a", "uid": "u" });
        let owners: Vec<Json> = owners.iter().map(owner).collect();
        json!({
            "metadata": { "name": name, "resourceVersion": "7", "ownerReferences": owners,
                "finalizers": finalizers },
            "spec": { "providerID": format!("aws:///us-east-1a/{id}") },
            "status": { "providerID": format!("aws:///us-east-1a/{id}") },
        })
    };
    let (claim, machine) = (("karpenter.sh/v1", "NodeClaim"), ("karpenter.sh/v1alpha5", "Machine"));
    let other = ("example.com/v1", "NodeClaim");
    let finalizer = "karpenter.sh/termination";
    let items = json!([
        node("claimed", "i-1", &[claim, other], &[finalizer, "example.com/keep"]),
        node("machine", "i-2", &[machine], &[]),
        node("released", "i-2", &[other], &["example.com/keep"]),
        node("foreign", "i-3", &[claim], &[finalizer]),
    ]);
    let rows = run_jq(&workspace, nodes, &items);
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["claimed", "machine"], "{rows:?}");
    let meta = &rows[0].1["metadata"];
    assert_eq!(meta["ownerReferences"][0]["apiVersion"], "example.com/v1");
    assert_eq!(meta["ownerReferences"].as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&meta["finalizers"], &meta["resourceVersion"]),
        (&json!(["example.com/keep"]), &json!("7"))
    );
    assert_eq!(rows[1].1["metadata"]["ownerReferences"], json!([]));
    // The claims of nodes that were not adopted stay.
    let rows = run_jq(&workspace, claims, &items);
    let names: Vec<&str> = rows.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["claimed", "machine", "released"]);
    assert_eq!(rows[0].1["metadata"]["finalizers"], json!(["example.com/keep"]));
    // The way back restores what the release removed.
    let text = guide("karpenter.md");
    let (_, back) = text.rsplit_once("kubectl patch node NODE --patch '").expect("a command");
    let back: Json = serde_json::from_str(back.split('\'').next().expect("an end")).expect("JSON");
    assert_eq!(back["metadata"]["finalizers"], json!([finalizer]));
}

/// Pools of the quickstart in older versions of Karpenter's API.
const REQUIREMENTS: &str = "requirements:
    - { key: kubernetes.io/arch, operator: In, values: [amd64] }
    - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
    - { key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r] }
    - { key: karpenter.k8s.aws/instance-generation, operator: Gt, values: [\"5\"] }
    - { key: karpenter.k8s.aws/instance-cpu, operator: Lt, values: [\"17\"] }
";

fn pools_v1beta1() -> String {
    let requirements = REQUIREMENTS.replace("\n    ", "\n      ");
    format!(
        "apiVersion: karpenter.sh/v1beta1\nkind: NodePool\nmetadata: {{ name: general }}\nspec:\n  \
         template:\n    spec:\n      nodeClassRef: {{ apiVersion: karpenter.k8s.aws/v1beta1, \
         kind: EC2NodeClass, name: default }}\n      {requirements}  limits: {{ cpu: 200 }}\n  \
         disruption: {{ consolidationPolicy: WhenUnderutilized, expireAfter: 720h }}\n---\n\
         apiVersion: karpenter.k8s.aws/v1beta1\nkind: EC2NodeClass\nmetadata: {{ name: default }}\n\
         spec:\n  amiFamily: AL2023\n  role: quickstart-node\n  \
         subnetSelectorTerms: [{{ tags: {{ karpenter.sh/discovery: quickstart }} }}]\n  \
         securityGroupSelectorTerms: [{{ tags: {{ karpenter.sh/discovery: quickstart }} }}]\n"
    )
}

fn pools_v1alpha5() -> String {
    let requirements = REQUIREMENTS.replace("\n    ", "\n  ");
    format!(
        "apiVersion: karpenter.sh/v1alpha5\nkind: Provisioner\nmetadata: {{ name: general }}\n\
         spec:\n  {requirements}  limits: {{ resources: {{ cpu: 200 }} }}\n  \
         consolidation: {{ enabled: true }}\n  ttlSecondsUntilExpired: 2592000\n  \
         providerRef: {{ name: default }}\n---\n\
         apiVersion: karpenter.k8s.aws/v1alpha1\nkind: AWSNodeTemplate\n\
         metadata: {{ name: default }}\nspec:\n  amiFamily: AL2\n  instanceProfile: nodes\n  \
         subnetSelector: {{ karpenter.sh/discovery: quickstart }}\n  \
         securityGroupSelector: {{ karpenter.sh/discovery: quickstart }}\n"
    )
}

/// Returns the quickstart with the fleet of a running Karpenter: its labels, annotations and tags.
/// `pools` replaces its pools.
fn fleet_of_karpenter(pools: Option<&str>, pool_label: &str) -> Workspace {
    let workspace = Workspace::example("quickstart");
    if let Some(pools) = pools {
        workspace.write("platform/nodepool.yaml", pools);
    }
    let applied = workspace.run(&["apply", ".", "--auto-approve"]);
    assert_eq!(applied.code, Some(0), "{}{}", applied.out, applied.err);
    edit_world(&workspace, |world| {
        let mut nodes = world["nodes"].take();
        for (name, node) in nodes.as_object_mut().expect("nodes") {
            let labels = node["labels"].as_object_mut().expect("labels");
            labels.remove("fleetwright.dev/key");
            labels.insert("karpenter.sh/registered".to_owned(), json!("true"));
            labels.insert("karpenter.sh/initialized".to_owned(), json!("true"));
            let pool = labels.get(pool_label).expect("the label of the pool").clone();
            node["annotations"] = json!({
                "karpenter.sh/nodepool-hash": "6821555240594823858",
                "karpenter.k8s.aws/ec2nodeclass-hash": "1550142903489436741",
            });
            let id = node["instance"].as_str().expect("an instance").to_owned();
            world["instances"][&id]["tags"] = json!({
                pool_label: pool, "Name": name, "karpenter.sh/nodeclaim": "general-x7k2p",
                "eks:eks-cluster-name": "quickstart", "kubernetes.io/cluster/quickstart": "owned",
            });
        }
        world["nodes"] = nodes;
    });
    workspace
}

/// Returns the tags that the way back of the page removes.
fn removed_tags() -> Vec<String> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/src/how-to/from-karpenter.md");
    let page = fs::read_to_string(page).expect("the page");
    let (_, command) = page.split_once("aws ec2 delete-tags").expect("the way back");
    let (command, _) = command.split_once("```").expect("its end");
    assert!(guide("karpenter.md").contains("aws ec2 delete-tags"), "the guide has it too");
    let tags = command.split_whitespace().filter_map(|word| word.strip_prefix("Key="));
    tags.map(str::to_owned).collect()
}

#[test]
fn adoption_and_the_way_back_change_no_node_in_any_version() {
    let (beta, alpha) = (pools_v1beta1(), pools_v1alpha5());
    for (pools, pool_label) in [
        (None, "karpenter.sh/nodepool"),
        (Some(beta.as_str()), "karpenter.sh/nodepool"),
        (Some(alpha.as_str()), "karpenter.sh/provisioner-name"),
    ] {
        let workspace = fleet_of_karpenter(pools, pool_label);
        let world = || serde_json::from_str::<Json>(&workspace.read(WORLD)).expect("a world");
        let before = world();
        let tags = instance_tags(&workspace);
        let planned = || {
            let plan = workspace.run(&["plan", "--format", "json"]);
            let plan: Json = serde_json::from_str(&plan.out).expect("a plan");
            for change in ["add", "change", "destroy", "replace"] {
                assert_eq!(plan["summary"][change], 0, "{pools:?} {change}");
            }
            let rows = plan["resource_changes"].as_array().expect("rows").clone();
            let mut addresses: Vec<String> =
                rows.iter().map(|row| row["address"].as_str().expect("text").to_owned()).collect();
            addresses.sort();
            addresses
        };
        let foreign = planned();
        assert!(foreign.iter().all(|address| address.contains(".foreign[")), "{foreign:?}");
        let adopt = || {
            let done = workspace.run(&["adopt", "--auto-approve"]);
            assert_eq!(done.code, Some(0), "{pools:?} {}{}", done.out, done.err);
            assert!(done.out.contains("The plan after that: no changes."), "{}", done.out);
            planned()
        };
        let adopted = adopt();
        assert_eq!(adopted.len(), foreign.len());
        assert!(adopted.iter().all(|address| address.contains(".general[")), "{adopted:?}");
        // An apply moves no pod, either.
        let applied = workspace.run(&["apply", ".", "--auto-approve"]);
        assert_eq!(applied.code, Some(0), "{pools:?} {}{}", applied.out, applied.err);
        for same in ["nodes", "pods"] {
            assert_eq!(before[same], world()[same], "{pools:?}: {same} are unchanged");
        }
        edit_world(&workspace, |world| {
            let instances = world["instances"].as_object_mut().expect("instances").values_mut();
            for instance in instances.filter(|instance| instance["state"] == "running") {
                let tags = instance["tags"].as_object_mut().expect("tags");
                for tag in removed_tags() {
                    assert!(tags.remove(&tag).is_some(), "{tag}");
                }
            }
        });
        assert_eq!(instance_tags(&workspace), tags, "Karpenter finds its instances unchanged");
        assert_eq!(planned(), foreign);
        assert_eq!(adopt(), adopted, "the nodes have the same addresses");
    }
}

/// Returns the settings of a guide, with `group` in place of the placeholder.
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
    let workspace = Workspace::example("nodegroups");
    let managed = workspace.read("fleetwright.yaml");
    let unmanaged = managed.replace("  groups:\n    web: { manage: true }\n", "");
    assert_ne!(managed, unmanaged);
    let discovery_tags =
        ["k8s.io/cluster-autoscaler/enabled", "k8s.io/cluster-autoscaler/workshop"];
    let edit_web_tags =
        |world: &mut Json, edit_world: &dyn Fn(&mut serde_json::Map<String, Json>)| {
            let mut groups = world["groups"].as_object_mut().expect("groups").values_mut();
            let is_web =
                |group: &&mut Json| group["tags"]["alpha.eksctl.io/nodegroup-name"] == "web";
            let web = groups.find(is_web).expect("the group");
            edit_world(web["tags"].as_object_mut().expect("tags"));
        };
    workspace.write("fleetwright.yaml", &unmanaged);
    edit_world(&workspace, |world| {
        edit_web_tags(world, &|group_tags| {
            group_tags.extend(discovery_tags.map(|tag| (tag.to_owned(), json!("true"))));
        });
        let running = json!({ "namespace": "kube-system", "name": "cluster-autoscaler",
            "kind": "Deployment", "replicas": 1 });
        world["workloads"].as_array_mut().expect("workloads").push(running);
    });
    let assert_observe_only = |reason: &str| {
        let plan = workspace.run(&["plan"]);
        assert!(plan.out.contains("group web is observe-only"), "{reason}: {}", plan.out);
        assert!(plan.out.contains(reason), "{reason}: {}", plan.out);
    };
    assert_observe_only("`spec.groups.web: { manage: true }`");
    // The steps follow the guide, except for the first one. Each step is needed.
    workspace.write(
        "fleetwright.yaml",
        &format!("{unmanaged}{}", settings("cluster-autoscaler.md", "web").replace("spec:\n", "")),
    );
    for tag in discovery_tags {
        assert_observe_only(&format!("its tag {tag} hands it to Cluster Autoscaler"));
        edit_world(&workspace, |world| {
            edit_web_tags(world, &|group_tags| drop(group_tags.remove(tag)));
        });
    }
    assert_observe_only("kube-system/cluster-autoscaler");
    edit_world(&workspace, |world| world["workloads"].as_array_mut().expect("workloads").clear());
    let plan = workspace.run(&["plan"]);
    assert!(!plan.out.contains("group web is observe-only"), "{}", plan.out);
    assert!(plan.out.contains("Plan: 4 to add, 1 to change, 0 to destroy."), "{}", plan.out);
}

/// Returns the `fleetwright` commands of a guide.
fn commands(name: &str) -> Vec<Vec<String>> {
    let text = guide(name);
    let lines = text.lines().filter_map(|line| line.trim().strip_prefix("fleetwright "));
    // The test uses an embedded world instead of a cluster.
    let words = |line: &str| line.replace("--world live", "--world sim:world");
    lines.map(|line| words(line).split(' ').map(str::to_owned).collect()).collect()
}

#[test]
fn guide_commands_behave_as_documented() {
    for (guide, workspace, last) in [
        ("karpenter.md", applied_by_karpenter(), "Plan: 0 to add, 0 to change, 0 to destroy."),
        ("cluster-autoscaler.md", Workspace::example("nodegroups"), "Plan: "),
    ] {
        let commands = commands(guide);
        assert!(commands.len() > 2, "{guide}");
        let mut printed = String::new();
        for command in commands {
            let result = workspace.run(&command);
            assert_eq!(result.code, Some(0), "{guide}: {command:?}\n{}{}", result.out, result.err);
            printed.push_str(&result.out);
        }
        assert!(printed.contains(last), "{guide}: {printed}");
    }
}

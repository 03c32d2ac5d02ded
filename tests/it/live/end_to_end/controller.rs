//! The loop, in a cluster with a real scheduler.

use super::*;

/// What has the loop act at once.
const LOOP: &str = "  controller:
    mode: full
    steer: true
    settle: 1s
    refresh: 2s
    poll: 1s
    removals: { most: 100%, within: 1s }
    massRemoval: 100%
";

/// Makes the kinds that the loop keeps, and waits until they are served.
async fn define_kinds(client: &Client) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/kubernetes/crds.yaml");
    let text = fs::read_to_string(path).expect("the kinds");
    for document in text.split("\n---\n") {
        let object: Json = serde_saphyr::from_str(document).expect("YAML");
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let name = post(client, path, &object).await["metadata"]["name"].clone();
        let path = format!("{path}/{}", name.as_str().expect("a name"));
        for _ in 0..100 {
            let found = get(client, &path).await;
            let mut conditions = found["status"]["conditions"].as_array().into_iter().flatten();
            if conditions.any(|c| c["type"] == "Established" && c["status"] == "True") {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

/// Returns what the metrics say of nominations, by result.
async fn nominations(page: &str) -> BTreeMap<String, u64> {
    let (_, text) = asks_page(page, "/metrics").await;
    let rows = text.lines().filter_map(|line| {
        let row = line.strip_prefix("fleetwright_nominations_total{result=\"")?;
        let (result, count) = row.split_once("\"} ")?;
        Some((result.to_owned(), count.trim().parse().ok()?))
    });
    rows.collect()
}

/// A pool whose nodes take no pods at first: until then its pods wait, with their nodes there.
const SLOW: &str = "\
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: { name: slow }
spec:
  template:
    metadata: { labels: { pool: slow } }
    spec:
      requirements:
      - { key: node.kubernetes.io/instance-type, operator: In, values: [m5.large] }
      - { key: karpenter.sh/capacity-type, operator: In, values: [on-demand] }
      startupTaints: [{ key: example.com/wait, value: 'yes', effect: NoSchedule }]
      nodeClassRef: { group: karpenter.k8s.aws, kind: EC2NodeClass, name: own }
  disruption: { budgets: [{ nodes: '100%' }] }
";

/// Pods that wait are nominated to the nodes that the plan has them on; it is counted how many of them the real
/// scheduler puts there once it may.
async fn steers(world: &mut LiveEnvironment, page: &str) {
    const PODS: u32 = 6;
    const OF_IT: &str = "/api/v1/namespaces/default/pods?labelSelector=app%3Dlate";
    let mut late = deployment("late", PODS, ("pool", "slow"));
    let container = &mut late["spec"]["template"]["spec"]["containers"][0];
    container["resources"] = json!({ "requests": { "cpu": "550m", "memory": "64Mi" } });
    let mut all = workloads(2);
    all.push(late.clone());
    world.commit(&all);
    post(&world.client, "/apis/apps/v1/namespaces/default/deployments", &late).await;
    let before = nominations(page).await;
    let (mut named, mut opened, mut rounds) = (BTreeMap::new(), false, 0);
    let (honoured, there) = loop {
        world.kubelets.round().await;
        let pods = get(&world.client, OF_IT).await;
        for pod in pods["items"].as_array().expect("a list") {
            let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
            if let Some(node) = pod["status"]["nominatedNodeName"].as_str() {
                named.insert(name, node.to_owned());
            }
        }
        let after = nominations(page).await;
        let more = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
        if !opened && more("made") >= u64::from(PODS) {
            opened = true;
            open_nodes(&world.client).await;
        }
        let honoured = more("honoured");
        if honoured + more("dropped") >= u64::from(PODS) {
            let there = pods["items"].as_array().expect("a list").iter().filter(|pod| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let node = pod["spec"]["nodeName"].as_str();
                node.is_some() && node == named.get(name).map(String::as_str)
            });
            break (honoured, there.count());
        }
        rounds += 1;
        assert!(rounds < 400, "{after:?} after {before:?}; {named:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    super::super::measured(&format!(
        "nominations that a real kube-scheduler honoured: {honoured} of {PODS} by the metric, {there} as seen from \
         outside, {} seen at all",
        named.len()
    ));
    assert!(honoured > 0, "a nomination is a hint, and not one was taken");
    // Nobody collects garbage here: what is deleted leaves its pods.
    let path = "/apis/apps/v1/namespaces/default/deployments/late";
    let none = json!({ "spec": { "replicas": 0 } });
    send(&world.client, "PATCH", path, "application/merge-patch+json", &none).await;
    for _ in 0..200 {
        world.kubelets.round().await;
        let pods = get(&world.client, OF_IT).await;
        if pods["items"].as_array().is_some_and(Vec::is_empty) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    send(&world.client, "DELETE", path, "application/json", &json!({})).await;
    world.commit(&workloads(2));
}

/// Takes the taint off nodes that keeps pods from them.
async fn open_nodes(client: &Client) {
    let nodes = get(client, "/api/v1/nodes?labelSelector=pool%3Dslow").await;
    for node in nodes["items"].as_array().expect("a list") {
        let path = format!("/api/v1/nodes/{}", node["metadata"]["name"].as_str().expect("a name"));
        let open = json!({ "spec": { "taints": null } });
        send(client, "PATCH", &path, "application/merge-patch+json", &open).await;
    }
}

/// The objects tell what the loop does, and whoever the cluster lets may ask something of it.
async fn is_told_and_asked(client: &Client, page: &str) {
    let plans = get(client, "/apis/fleetwright.dev/v1alpha1/capacityplans").await;
    assert!(!plans["items"].as_array().expect("a list").is_empty(), "{plans}");
    let pools = get(client, "/apis/fleetwright.dev/v1alpha1/capacitypools").await;
    assert!(pools.to_string().contains("general"), "{pools}");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let (people, few) = (&["approve", "confirm", "suspend", "reset"][..], &["break-glass"][..]);
    for (name, verbs) in [("stranger", &[][..]), ("approver", people), ("breaker", few)] {
        post(client, accounts, &json!({ "metadata": { "name": name } })).await;
        if !verbs.is_empty() {
            let rule = json!({ "apiGroups": ["fleetwright.dev"], "resources": ["capacityplans"],
                "verbs": verbs });
            let granted = json!({ "metadata": { "name": name }, "rules": [rule] });
            post(client, "/apis/rbac.authorization.k8s.io/v1/clusterroles", &granted).await;
            let binding = json!({ "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": name },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "default" }] });
            post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await;
        }
        let asked =
            json!({ "spec": { "audiences": ["fleetwright.dev"], "expirationSeconds": 600 } });
        let token = post(client, &format!("{accounts}/{name}/token"), &asked).await;
        let token = token["status"]["token"].as_str().expect("a token").to_owned();
        let request = |token: &str, body: &str| {
            format!(
                "POST /requests HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\nauthorization: Bearer {token}\r\n\
             content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        for (verb, body) in [
            ("suspend", "request=suspend&minutes=1&reason=a+test"),
            ("suspend", "request=resume"),
            ("confirm", "request=confirm&instance=i-0fffffffffffffff0"),
            ("reset", "request=reset&breaker=none"),
            ("break-glass", "request=break-glass&minutes=1&reason=another+test"),
            ("break-glass", "request=mend-glass"),
        ] {
            let (code, text) = asks(page, &request(&token, body)).await;
            let may = verbs.contains(&verb);
            assert_eq!(code, if may { "202" } else { "403" }, "{name} {body}: {text}");
            assert!(text.contains(&format!("system:serviceaccount:default:{name}")), "{text}");
            if may && body.contains("break-glass") {
                is_broken(client, page).await;
            }
        }
        assert_eq!(asks(page, &request("nonsense", "request=resume")).await.0, "401");
    }
}

/// Metrics and an event tell that the glass was broken, and by whom.
async fn is_broken(client: &Client, page: &str) {
    let get_metrics = format!("GET /metrics HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\n\r\n");
    for _ in 0..100 {
        let told = asks(page, &get_metrics).await.1.contains("\nfleetwright_break_glass 1\n");
        let events = get(client, "/api/v1/namespaces/default/events").await.to_string();
        let by = "requested by system:serviceaccount:default:breaker: another test";
        if told && events.contains("BreakGlassStarted") && events.contains(by) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("nobody is told that the glass is broken");
}

#[test]
fn controller_converges_cluster_with_real_scheduler() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_whole(), Moto::start()) else { return };
    runtime().block_on(async {
        let mut world = LiveEnvironment::start(moto, plane).await;
        fs::write(world.tree.path().join("fleetwright.yaml"), format!("{FLEET}{LOOP}"))
            .expect("written");
        world.edit_pools(|pools| format!("{pools}{SLOW}"));
        world.commit(&workloads(1));
        define_kinds(&world.client).await;
        let log = world.tree.path().join("run.log");
        let mut replica = world
            .command(&["run", ".", "--world", "live", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::null())
            .stderr(fs::File::create(&log).expect("a file"))
            .spawn()
            .expect("the program");
        // Nodes come up before the workloads do.
        world.until_nodes(3, &log).await;
        world.deliver(&workloads(1)).await;
        world.commit(&workloads(2));
        world.until_nodes(6, &log).await;
        world.deliver(&workloads(2)).await;
        let said = fs::read_to_string(&log).unwrap_or_default();
        let page = said.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let page = page.expect("it says where the page is").to_owned();
        steers(&mut world, &page).await;
        is_told_and_asked(&world.client, &page).await;
        world.commit(&workloads(1));
        world.deliver(&workloads(1)).await;
        world.until_nodes(3, &log).await;
        world.deliver(&workloads(1)).await;
        let id = replica.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        let ended = tokio::task::spawn_blocking(move || replica.wait().expect("it ends"));
        let said = || fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(ended.await.expect("a result").code(), Some(0), "{}", said());
        let events = get(&world.client, "/api/v1/namespaces/default/events").await.to_string();
        assert!(events.contains("CapacityPlan") && events.contains("carried out"), "{events}");
        assert_eq!(nodes(&world).len(), 3, "{}", said());
    });
}

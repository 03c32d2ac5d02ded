//! End-to-end tests of the controller with a real scheduler.

use std::process::Stdio;

use super::*;

/// Settings with which the controller acts immediately.
const CONTROLLER_SETTINGS: &str = "  controller:
    mode: full
    steer: true
    settle: 1s
    refresh: 2s
    poll: 1s
    removals: { most: 100%, within: 1s }
    massRemoval: 100%
";

/// Creates the custom resource definitions of the controller, and waits until they are established.
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

/// Returns the metric of nominations, by result.
async fn nominations(page: &str) -> BTreeMap<String, u64> {
    let (_, text) = get_page(page, "/metrics").await;
    let rows = text.lines().filter_map(|line| {
        let row = line.strip_prefix("fleetwright_nominations_total{result=\"")?;
        let (result, count) = row.split_once("\"} ")?;
        Some((result.to_owned(), count.trim().parse().ok()?))
    });
    rows.collect()
}

/// A pool whose nodes have a startup taint. Its pods stay pending until the taint is removed.
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
  disruption: { consolidateAfter: 0s, budgets: [{ nodes: '100%' }] }
";

/// Checks that pending pods are nominated to their planned nodes. Counts the pods that the real
/// scheduler binds there after the taint is removed.
async fn check_nominations(world: &mut LiveEnvironment, page: &str) {
    const PODS: u32 = 6;
    const SELECTOR_PATH: &str = "/api/v1/namespaces/default/pods?labelSelector=app%3Dlate";
    let mut deployment_object = deployment("late", PODS, "pool", "slow");
    let container = &mut deployment_object["spec"]["template"]["spec"]["containers"][0];
    container["resources"] = json!({ "requests": { "cpu": "550m", "memory": "64Mi" } });
    let mut all = workloads(2);
    all.push(deployment_object.clone());
    world.commit(&all);
    post(&world.client, "/apis/apps/v1/namespaces/default/deployments", &deployment_object).await;
    let before = nominations(page).await;
    let (mut nominated, mut is_open, mut rounds) = (BTreeMap::new(), false, 0);
    let (honored, bound) = loop {
        world.kubelets.round().await;
        let pods = get(&world.client, SELECTOR_PATH).await;
        for pod in pods["items"].as_array().expect("a list") {
            let name = pod["metadata"]["name"].as_str().expect("a name").to_owned();
            if let Some(node) = pod["status"]["nominatedNodeName"].as_str() {
                nominated.insert(name, node.to_owned());
            }
        }
        let after = nominations(page).await;
        let more = |name: &str| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
        if !is_open && more("made") >= u64::from(PODS) {
            is_open = true;
            open_nodes(&world.client).await;
        }
        let honored = more("honored");
        if honored + more("dropped") >= u64::from(PODS) {
            let bound = pods["items"].as_array().expect("a list").iter().filter(|pod| {
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let node = pod["spec"]["nodeName"].as_str();
                node.is_some() && node == nominated.get(name).map(String::as_str)
            });
            break (honored, bound.count());
        }
        rounds += 1;
        assert!(rounds < 400, "{after:?} after {before:?}; {nominated:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    };
    super::super::measured(&format!(
        "nominations that a real kube-scheduler honored: {honored} of {PODS} by the metric, {bound} by observation, \
         {} pods nominated",
        nominated.len()
    ));
    assert!(honored > 0, "at least one nomination must be honored");
    // No garbage collector runs here: a deleted Deployment leaves its pods.
    let path = "/apis/apps/v1/namespaces/default/deployments/late";
    let none = json!({ "spec": { "replicas": 0 } });
    send(&world.client, "PATCH", path, "application/merge-patch+json", &none).await;
    for _ in 0..200 {
        world.kubelets.round().await;
        let pods = get(&world.client, SELECTOR_PATH).await;
        if pods["items"].as_array().is_some_and(Vec::is_empty) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    send(&world.client, "DELETE", path, "application/json", &json!({})).await;
    world.commit(&workloads(2));
}

/// Removes the startup taint from the nodes of the pool.
async fn open_nodes(client: &Client) {
    let nodes = get(client, "/api/v1/nodes?labelSelector=pool%3Dslow").await;
    for node in nodes["items"].as_array().expect("a list") {
        let path = format!("/api/v1/nodes/{}", node["metadata"]["name"].as_str().expect("a name"));
        let open = json!({ "spec": { "taints": null } });
        send(client, "PATCH", &path, "application/merge-patch+json", &open).await;
    }
}

/// Checks the objects that the controller writes, and that requests need the permission of the
/// cluster.
async fn check_objects_and_requests(client: &Client, page: &str) {
    let plans = get(client, "/apis/fleetwright.dev/v1alpha1/capacityplans").await;
    assert!(!plans["items"].as_array().expect("a list").is_empty(), "{plans}");
    let pools = get(client, "/apis/fleetwright.dev/v1alpha1/capacitypools").await;
    assert!(pools.to_string().contains("general"), "{pools}");
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let (approver_verbs, breaker_verbs) =
        (&["approve", "confirm", "suspend", "reset"][..], &["break-glass"][..]);
    for (name, verbs) in
        [("stranger", &[][..]), ("approver", approver_verbs), ("breaker", breaker_verbs)]
    {
        post(client, accounts, &json!({ "metadata": { "name": name } })).await;
        if !verbs.is_empty() {
            let rule = json!({ "apiGroups": ["fleetwright.dev"], "resources": ["capacityplans"],
                "verbs": verbs });
            let role = json!({ "metadata": { "name": name }, "rules": [rule] });
            post(client, "/apis/rbac.authorization.k8s.io/v1/clusterroles", &role).await;
            let binding = json!({ "metadata": { "name": name },
                "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": name },
                "subjects": [{ "kind": "ServiceAccount", "name": name, "namespace": "default" }] });
            post(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await;
        }
        let token_request =
            json!({ "spec": { "audiences": ["fleetwright.dev"], "expirationSeconds": 600 } });
        let token = post(client, &format!("{accounts}/{name}/token"), &token_request).await;
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
            ("break-glass", "request=end-break-glass"),
        ] {
            let (code, text) = send_request(page, &request(&token, body)).await;
            let is_allowed = verbs.contains(&verb);
            assert_eq!(code, if is_allowed { "202" } else { "403" }, "{name} {body}: {text}");
            assert!(text.contains(&format!("system:serviceaccount:default:{name}")), "{text}");
            if is_allowed && body.starts_with("request=break-glass") {
                wait_for_break_glass(client, page).await;
            }
        }
        assert_eq!(send_request(page, &request("nonsense", "request=resume")).await.0, "401");
    }
}

/// Checks that metrics and an event report break-glass and its requester.
async fn wait_for_break_glass(client: &Client, page: &str) {
    let get_metrics = format!("GET /metrics HTTP/1.1\r\nhost: {page}\r\nconnection: close\r\n\r\n");
    for _ in 0..100 {
        let in_metrics =
            send_request(page, &get_metrics).await.1.contains("\nfleetwright_break_glass 1\n");
        let events = get(client, "/api/v1/namespaces/default/events").await.to_string();
        let by = "requested by system:serviceaccount:default:breaker: another test";
        if in_metrics && events.contains("BreakGlassStarted") && events.contains(by) {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    panic!("break-glass is not reported");
}

#[test]
fn controller_converges_cluster_with_real_scheduler() {
    let (Some(plane), Some(moto)) = (ControlPlane::start_with_controllers(), Moto::start()) else {
        return;
    };
    runtime().block_on(async {
        let mut world = LiveEnvironment::start(moto, plane).await;
        fs::write(
            world.tree.path().join("fleetwright.yaml"),
            format!("{FLEET}{CONTROLLER_SETTINGS}"),
        )
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
        // Nodes are launched before the workloads are delivered.
        world.wait_for_nodes(3, &log).await;
        world.deliver(&workloads(1)).await;
        world.commit(&workloads(2));
        world.wait_for_nodes(6, &log).await;
        world.deliver(&workloads(2)).await;
        let log_text = fs::read_to_string(&log).unwrap_or_default();
        let page = log_text.split("http://").nth(1).and_then(|rest| rest.split('/').next());
        let page = page.expect("it prints the address of the page").to_owned();
        check_nominations(&mut world, &page).await;
        check_objects_and_requests(&world.client, &page).await;
        world.commit(&workloads(1));
        world.deliver(&workloads(1)).await;
        world.wait_for_nodes(3, &log).await;
        world.deliver(&workloads(1)).await;
        let id = replica.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        let status = tokio::task::spawn_blocking(move || replica.wait().expect("it ends"));
        let log_text = || fs::read_to_string(&log).unwrap_or_default();
        assert_eq!(status.await.expect("a result").code(), Some(0), "{}", log_text());
        let events = get(&world.client, "/api/v1/namespaces/default/events").await.to_string();
        assert!(events.contains("CapacityPlan") && events.contains("applied: "), "{events}");
        assert_eq!(nodes(&world).len(), 3, "{}", log_text());
    });
}

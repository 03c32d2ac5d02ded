//! `fleetwright sandbox` with the real kubectl, if it is installed.

#[cfg(feature = "cluster")]
mod controller;

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::missing_tool::not_run;

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_mins(3);

/// A running sandbox, which Ctrl-C stops.
pub(crate) struct Sandbox {
    process: Child,
    pub(crate) kubeconfig: PathBuf,
    /// Output of the sandbox at its start.
    output: String,
}

impl Sandbox {
    /// Starts a sandbox without a controller for a repository, at 20 times the real speed.
    pub(crate) fn start(tree: &Path) -> Self {
        let alone: &[&str] = if cfg!(feature = "cluster") { &["--no-controller"] } else { &[] };
        Self::start_with(tree, alone)
    }

    /// Starts a sandbox with these options for a repository, at 20 times the real speed.
    fn start_with(tree: &Path, options: &[&str]) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .arg("sandbox")
            .arg(tree)
            .args(["--speed", "20"])
            .args(options)
            // The controller of the sandbox reaches nothing that the environment names.
            .env("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
            .env("KUBECONFIG", "/no/such/kubeconfig")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut output = String::new();
        for line in lines.by_ref().map(|line| line.expect("text")) {
            output.push_str(&line);
            output.push('\n');
            if line.starts_with("Ctrl-C") {
                break;
            }
        }
        let named = output.lines().find_map(|line| line.trim().strip_prefix("export KUBECONFIG="));
        let kubeconfig = PathBuf::from(named.unwrap_or_else(|| panic!("no kubeconfig: {output}")));
        Self { process, kubeconfig, output }
    }

    /// Returns the URL of both APIs.
    #[cfg(feature = "cluster")]
    pub(crate) fn url(&self) -> &str {
        let (_, rest) = self.output.split_once("runs at ").expect("it says where");
        rest.split(',').next().expect("a URL")
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// Runs kubectl, which must succeed, and returns its output.
    fn kubectl_output(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments).output().expect("kubectl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}\n{out}\n{err}");
        out
    }

    /// Runs kubectl until its output matches `is`.
    fn wait_for_output(&self, arguments: &[&str], is: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let out = self.kubectl_output(arguments);
            if is(&out) {
                return out;
            }
            assert!(started.elapsed() < TIMEOUT, "kubectl {arguments:?} still prints\n{out}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn end(mut self) {
        let id = self.process.id().to_string();
        let asked = Command::new("kill").args(["-INT", &id]).status().expect("kill");
        assert!(asked.success());
        let ended = self.process.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0), "Ctrl-C ends the sandbox successfully");
        assert!(!self.kubeconfig.exists(), "the kubeconfig is removed");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // After a successful test, the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether kubectl is installed. If not, prints this to stderr.
fn has_kubectl() -> bool {
    let found = Command::new("kubectl").args(["version", "--client"]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        not_run("kubectl", "there is no kubectl");
    }
    has
}

/// Returns a copy of the quickstart.
pub(crate) fn quickstart() -> tempfile::TempDir {
    let tree = tempfile::tempdir().expect("a directory");
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/quickstart");
    let copied = Command::new("cp").arg("-r").arg(from.join(".")).arg(tree.path()).status();
    assert!(copied.expect("cp").success());
    tree
}

#[test]
fn kubectl_reads_drains_and_scales_the_sandbox() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    assert!(sandbox.output.contains("kubectl get nodes"), "{}", sandbox.output);
    let nodes = sandbox.kubectl_output(&["get", "nodes"]);
    assert_eq!(nodes.matches(" Ready ").count(), 3, "{nodes}");
    let all = sandbox.kubectl_output(&["get", "pods", "-A", "--chunk-size=5", "--no-headers"]);
    assert!(all.lines().count() > 10, "paged: {all}");
    let sorted = ["get", "pods", "-n", "kube-system", "--no-headers", "-o", "wide"];
    let sorted = sandbox.kubectl_output(&[&sorted[..], &["--sort-by=.spec.nodeName"]].concat());
    let on: Vec<&str> = sorted.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(on.len() == 3 && on.is_sorted(), "{sorted}");
    let everything = sandbox.kubectl_output(&["get", "all", "-n", "shop"]);
    assert!(everything.contains("pod/web-") && everything.contains("deployment.apps/web"));
    assert_eq!(sandbox.kubectl_output(&["auth", "can-i", "create", "pods"]), "yes\n");

    // A watch reports the drain.
    let mut watch = sandbox.kubectl(&["get", "pods", "-n", "shop", "--watch", "--no-headers"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("kubectl");
    let first = nodes.lines().nth(1).and_then(|line| line.split(' ').next()).expect("a node");
    let drained =
        sandbox.kubectl_output(&["drain", first, "--ignore-daemonsets", "--timeout=180s"]);
    assert!(drained.contains("evicted") && drained.contains("drained"), "{drained}");
    let left = ["get", "pods", "-n", "shop", "-o", "name", "--field-selector"];
    let left = sandbox.kubectl_output(&[&left[..], &[&format!("spec.nodeName={first}")]].concat());
    assert_eq!(left, "", "no pod of the shop remains on the node");
    let node = sandbox.kubectl_output(&["get", "node", first]);
    assert!(node.contains("Ready,SchedulingDisabled"), "{node}");
    watch.kill().expect("it runs");
    let mut watched = String::new();
    watch.stdout.take().expect("piped").read_to_string(&mut watched).expect("text");
    watch.wait().expect("it ends");
    assert!(watched.contains("Terminating"), "{watched}");

    sandbox.kubectl_output(&["uncordon", first]);
    sandbox.kubectl_output(&["taint", "node", first, "dedicated=ml:NoSchedule"]);
    sandbox.kubectl_output(&["label", "node", first, "team=ml"]);
    let labeled = sandbox.kubectl_output(&[
        "get",
        "nodes",
        "-l",
        "team=ml",
        "-o",
        "jsonpath={..taints[*].key}",
    ]);
    assert_eq!(labeled, "dedicated");
    sandbox.kubectl_output(&["scale", "-n", "shop", "deployment/web", "--replicas=2"]);
    let web = ["get", "deployment", "web", "-n", "shop", "--no-headers"];
    sandbox.wait_for_output(&web, |out| out.contains(" 2/2 "));
    sandbox.kubectl_output(&["delete", "-n", "shop", "deployment/cart", "--timeout=30s"]);
    let pods = ["get", "pods", "-n", "shop", "-o", "name"];
    sandbox.wait_for_output(&pods, |out| !out.contains("/cart-"));
    sandbox.end();
}

#[test]
fn kubectl_applies_and_lists_all_sandbox_kinds() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let write = |name: &str, text: &str| {
        std::fs::write(tree.path().join(name), text).expect("written");
    };
    write(
        "apps/scaled.yaml",
        "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\n\
         metadata: { name: web, namespace: shop }\n\
         spec: { scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: web },\n\
         \x20 minReplicas: 2, maxReplicas: 9, metrics: [{ type: Resource, resource: { name: cpu,\n\
         \x20 target: { type: Utilization, averageUtilization: 80 } } }] }\n---\n\
         apiVersion: batch/v1\nkind: CronJob\nmetadata: { name: nightly, namespace: shop }\n\
         spec: { schedule: '0 3 * * *', jobTemplate: { spec: { template: { spec: {\n\
         \x20 restartPolicy: Never, containers: [{ name: a, image: a }] } } } } }\n",
    );
    let sandbox = Sandbox::start(tree.path());
    let scalers = sandbox.kubectl_output(&["get", "hpa", "-n", "shop"]);
    assert!(
        scalers.contains("Deployment/web") && scalers.contains("cpu: <unknown>/80%"),
        "{scalers}"
    );
    let schedules = sandbox.kubectl_output(&["get", "cronjobs", "-n", "shop"]);
    assert!(schedules.contains("nightly") && schedules.contains("0 3 * * *"), "{schedules}");
    for kind in ["capacityplans", "capacitypools"] {
        assert_eq!(sandbox.kubectl_output(&["get", kind]), "", "{kind}: none yet");
    }

    let app = |replicas: u32, label: &str| {
        format!(
            "apiVersion: apps/v1\nkind: Deployment\n\
             metadata: {{ name: probe, namespace: shop, labels: {{ {label} }} }}\n\
             spec:\n  replicas: {replicas}\n  selector: {{ matchLabels: {{ app: probe }} }}\n  \
             template:\n    metadata: {{ labels: {{ app: probe }} }}\n    spec:\n      containers:\n      \
             - {{ name: a, image: a, resources: {{ requests: {{ cpu: 10m }} }} }}\n---\n\
             apiVersion: v1\nkind: Service\nmetadata: {{ name: probe, namespace: shop }}\n\
             spec: {{ selector: {{ app: probe }}, ports: [{{ name: web, port: {replicas} }}] }}\n"
        )
    };
    let file = tree.path().join("probe.txt");
    let path = file.to_str().expect("UTF-8");
    let pods = ["get", "pods", "-n", "shop", "-l", "app=probe", "--no-headers"];
    let running = |count: usize| move |out: &str| out.matches("Running").count() == count;
    for (flags, replicas, label, output) in [
        (&[][..], 1, "a: one", "deployment.apps/probe created"),
        (&[], 3, "b: two", "deployment.apps/probe configured"),
        (&["--server-side", "--force-conflicts"], 2, "c: three", "probe serverside-applied"),
    ] {
        std::fs::write(&file, app(replicas, label)).expect("written");
        let applied = sandbox.kubectl_output(&[&["apply", "-f", path][..], flags].concat());
        assert!(applied.contains(output), "{applied}");
        sandbox.wait_for_output(&pods, running(usize::try_from(replicas).expect("a count")));
    }
    let labels = ["get", "deployment", "probe", "-n", "shop", "-o", "jsonpath={.metadata.labels}"];
    let found = sandbox.kubectl_output(&labels);
    assert!(found.contains("\"c\":\"three\"") && !found.contains("\"a\""), "{found}");
    // Fields that the manifest no longer sets are removed.
    std::fs::write(&file, app(2, "d: four")).expect("written");
    sandbox.kubectl_output(&["apply", "--server-side", "-f", path]);
    let found = sandbox.kubectl_output(&labels);
    assert!(found.contains("\"d\"") && !found.contains("\"c\""), "{found}");
    let again = sandbox.kubectl_output(&["apply", "--server-side", "--dry-run=server", "-f", path]);
    assert!(again.contains("serverside-applied (server dry run)"), "{again}");
    sandbox.end();
}

#[test]
fn unreadable_files_are_reported_at_sandbox_start() {
    let tree = quickstart();
    std::fs::write(tree.path().join("broken.yaml"), "kind: Pod\nspec: [").expect("written");
    let mut sandbox = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .arg("sandbox")
        .arg(tree.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    let output = BufReader::new(sandbox.stderr.take().expect("piped")).lines();
    let mut lines = output.map(|line| line.expect("text"));
    let first = lines.find(|line| line.starts_with("warning: ")).expect("a warning");
    sandbox.kill().expect("it runs");
    sandbox.wait().expect("it ends");
    assert!(first.starts_with("warning: broken.yaml:") && first.contains("validate"), "{first}");
}

#[test]
fn sandbox_redelivers_changed_workloads() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let more = "apiVersion: v1\nkind: Pod\nmetadata: { name: probe, namespace: shop }\n\
                spec: { containers: [{ name: a, image: a, resources: { requests: { cpu: 10m } } }] }\n";
    std::fs::write(tree.path().join("apps/probe.yaml"), more).expect("written");
    let probe = ["get", "pods", "-n", "shop", "--no-headers", "--ignore-not-found", "probe"];
    sandbox.wait_for_output(&probe, |out| out.contains("Running"));
    sandbox.end();
}

#[test]
fn node_claims_and_autoscalers_of_version_1_are_served() {
    // With its short name, kubectl reads the preferred version.
    const OLD: &str = "horizontalpodautoscalers.v1.autoscaling";
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let claims = sandbox.kubectl_output(&["get", "nodeclaims"]);
    assert!(claims.starts_with("NAME") && claims.contains("CAPACITY"), "{claims}");
    assert_eq!(claims.lines().count(), 4, "{claims}");
    assert_eq!(claims.matches(" True ").count(), 3, "{claims}");
    let of = |path: &str| {
        let path = format!("jsonpath={{.items[0].{path}}}");
        sandbox.kubectl_output(&["get", "nodeclaims.karpenter.sh", "-o", &path])
    };
    let provider_id = ["get", "node", &of("status.nodeName"), "-o", "jsonpath={.spec.providerID}"];
    assert_eq!(sandbox.kubectl_output(&provider_id), of("status.providerID"));
    assert_eq!(of("metadata.ownerReferences[0].kind"), "NodePool");
    let pool = ["get", "nodepool", "general", "-o", "jsonpath={.metadata.uid}"];
    assert_eq!(sandbox.kubectl_output(&pool), of("metadata.ownerReferences[0].uid"));
    let refused = sandbox.kubectl(&["delete", "nodeclaims", "--all"]).output().expect("kubectl");
    assert!(!refused.status.success(), "claims are read-only");

    let file = tree.path().join("old.txt");
    let path = file.to_str().expect("UTF-8");
    let old = ["get", OLD, "cart", "-n", "shop", "-o"];
    let target = "jsonpath={.apiVersion} {.spec.targetCPUUtilizationPercentage}";
    for percent in [60, 70] {
        let text = format!(
            "apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\n\
             metadata: {{ name: cart, namespace: shop }}\n\
             spec: {{ scaleTargetRef: {{ apiVersion: apps/v1, kind: Deployment, name: cart }},\n\
             \x20 minReplicas: 1, maxReplicas: 4, targetCPUUtilizationPercentage: {percent} }}\n"
        );
        std::fs::write(&file, text).expect("written");
        sandbox.kubectl_output(&["apply", "-f", path]);
        let found = sandbox.kubectl_output(&[&old[..], &[target]].concat());
        assert_eq!(found, format!("autoscaling/v1 {percent}"));
    }
    // A client of version 2 sees the same object.
    let new = ["get", "hpa", "cart", "-n", "shop"];
    let found = sandbox.kubectl_output(&new);
    assert!(found.contains("cpu: <unknown>/70%") && found.contains("Deployment/cart"), "{found}");
    let metric = "[{\"type\":\"External\",\"external\":{\"metric\":{\"name\":\"queue\"},\
                  \"target\":{\"type\":\"Value\",\"value\":\"3\"}}}]";
    let patch = format!("{{\"spec\":{{\"metrics\":{metric}}}}}");
    let change = ["patch", "-n", "shop", "--type=merge", "-p"];
    sandbox.kubectl_output(&[&change[..], &[&patch, "hpa", "cart"]].concat());
    let patch = "{\"spec\":{\"targetCPUUtilizationPercentage\":90}}";
    sandbox.kubectl_output(&[&change[..], &[patch, OLD, "cart"]].concat());
    let names = [&new[..], &["-o", "jsonpath={.spec.metrics[*].type}"]].concat();
    assert_eq!(sandbox.kubectl_output(&names), "External Resource");
    let listed = sandbox.kubectl_output(&["get", OLD, "-n", "shop", "-o", "json"]);
    assert!(listed.contains("\"targetCPUUtilizationPercentage\": 90"), "{listed}");
    let delete = ["delete", OLD, "cart", "-n", "shop"];
    sandbox.kubectl_output(&delete);
    sandbox.end();
}

#[test]
fn declared_pools_and_autoscalers_are_served() {
    if !has_kubectl() {
        return;
    }
    let tree = quickstart();
    let scalers = "apiVersion: autoscaling.k8s.io/v1\nkind: VerticalPodAutoscaler\n\
         metadata: { name: cart, namespace: shop }\n\
         spec: { targetRef: { apiVersion: apps/v1, kind: Deployment, name: cart },\n\
         \x20 updatePolicy: { updateMode: 'Off' } }\n---\n\
         apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata: { name: web, namespace: shop }\n\
         spec: { scaleTargetRef: { name: web }, minReplicaCount: 2, maxReplicaCount: 20,\n\
         \x20 triggers: [{ type: cpu, metricType: Utilization, metadata: { value: '60' } }] }\n---\n\
         apiVersion: v1\nkind: Secret\nmetadata: { name: token, namespace: shop }\n\
         stringData: { token: hidden }\n";
    std::fs::write(tree.path().join("apps/scalers.yaml"), scalers).expect("written");
    let sandbox = Sandbox::start(tree.path());
    for (kind, parts) in [
        ("nodepools", &["general"][..]),
        ("ec2nodeclasses", &["quickstart-node"]),
        ("vpa", &["Deployment/cart", "Off"]),
        ("scaledobjects", &["web", "20"]),
    ] {
        let out = sandbox.kubectl_output(&["get", kind, "-A"]);
        assert!(parts.iter().all(|part| out.contains(part)), "{kind}: {out}");
    }
    let secrets = sandbox.kubectl_output(&["get", "secrets", "-A", "-o", "name"]);
    assert_eq!(secrets, "", "the API has no authentication");
    let refused = sandbox.kubectl(&["delete", "nodepool", "general"]).output().expect("kubectl");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("change them in the repository"), "{text}");
    let kinds = sandbox.kubectl_output(&["api-resources", "--verbs=list", "-o", "name"]);
    for kind in kinds.lines() {
        sandbox.kubectl_output(&["get", kind, "-A"]);
    }
    let described = sandbox.kubectl_output(&["describe", "deployment", "web", "-n", "shop"]);
    assert!(described.contains("25% max unavailable, 25% max surge"), "{described}");
    sandbox.end();
}

//! `fleetwright sandbox` with the real kubectl, if it is installed.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Timeout of every wait.
const TIMEOUT: Duration = Duration::from_mins(1);

/// A running sandbox, which Ctrl-C stops.
pub(crate) struct Sandbox {
    process: Child,
    pub(crate) kubeconfig: PathBuf,
    /// Output of the sandbox at its start.
    output: String,
}

impl Sandbox {
    /// Starts a sandbox for a repository, at 20 times the real speed.
    pub(crate) fn start(tree: &Path) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
            .arg("sandbox")
            .arg(tree)
            .args(["--speed", "20"])
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
        let (_, rest) = self.output.split_once("served at ").expect("it says where");
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
    use std::io::Write as _;
    let found = Command::new("kubectl").args(["version", "--client"]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        // An error of stderr is ignored.
        let _ = writeln!(std::io::stderr(), "not run: there is no kubectl");
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
    let drained = sandbox.kubectl_output(&["drain", first, "--ignore-daemonsets", "--timeout=60s"]);
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
    let mut output = BufReader::new(sandbox.stderr.take().expect("piped")).lines();
    let first = output.next().expect("a line").expect("text");
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

/// Runs this program with the environment variables that the sandbox prints.
#[cfg(feature = "cluster")]
fn fleetwright(sandbox: &Sandbox, code: i32, arguments: &[&str]) -> String {
    let set = sandbox.output.lines().filter_map(|line| line.trim().strip_prefix("export "));
    let set = set.flat_map(|line| line.split(' ')).filter_map(|pair| pair.split_once('='));
    let output = Command::new(env!("CARGO_BIN_EXE_fleetwright"))
        .args(arguments)
        .envs(set)
        .env("NO_COLOR", "1")
        .stdin(Stdio::null())
        .output()
        .expect("the program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{arguments:?}\n{out}\n{err}");
    out
}

#[cfg(feature = "cluster")]
#[test]
fn plan_applied_in_sandbox_leaves_an_empty_plan() {
    let tree = quickstart();
    let sandbox = Sandbox::start(tree.path());
    let path = tree.path().to_str().expect("UTF-8");
    let plan = tree.path().join("plan.json");
    let plan = plan.to_str().expect("UTF-8");
    let live = ["plan", path, "--world", "live"];
    let first = fleetwright(&sandbox, 0, &[&live[..], &["--out", plan]].concat());
    assert!(first.contains("to add"), "{first}");
    fleetwright(&sandbox, 0, &["apply", plan, "--path", path, "--auto-approve"]);
    let again = fleetwright(&sandbox, 0, &[&live[..], &["--detailed-exitcode"]].concat());
    assert!(again.contains("Plan: 0 to add, 0 to change, 0 to destroy."), "{again}");
    sandbox.end();
}

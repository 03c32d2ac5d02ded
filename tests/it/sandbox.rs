//! `fleetwright sandbox` with the real kubectl, where there is one.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest wait for anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// A sandbox that runs; it is ended by Ctrl-C.
pub(crate) struct Sandbox {
    process: Child,
    pub(crate) kubeconfig: PathBuf,
    /// What it said of itself.
    said: String,
}

impl Sandbox {
    /// Serves a tree, in which everything takes a twentieth of its time.
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
        let mut said = String::new();
        for line in lines.by_ref().map(|line| line.expect("text")) {
            said.push_str(&line);
            said.push('\n');
            if line.starts_with("Ctrl-C") {
                break;
            }
        }
        let named = said.lines().find_map(|line| line.trim().strip_prefix("export KUBECONFIG="));
        let kubeconfig = PathBuf::from(named.unwrap_or_else(|| panic!("no kubeconfig: {said}")));
        Self { process, kubeconfig, said }
    }

    /// Returns where both APIs are served.
    #[cfg(feature = "cluster")]
    pub(crate) fn url(&self) -> &str {
        let (_, rest) = self.said.split_once("served at ").expect("it says where");
        rest.split(',').next().expect("a URL")
    }

    fn kubectl(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("kubectl");
        command.args(arguments).env("KUBECONFIG", &self.kubeconfig).stdin(Stdio::null());
        command
    }

    /// Runs kubectl, which must succeed, and returns what it printed.
    fn ran(&self, arguments: &[&str]) -> String {
        let output = self.kubectl(arguments).output().expect("kubectl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "kubectl {arguments:?}\n{out}\n{err}");
        out
    }

    /// Runs kubectl until what it prints is as `is` wants it.
    fn until(&self, arguments: &[&str], is: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let out = self.ran(arguments);
            if is(&out) {
                return out;
            }
            assert!(begun.elapsed() < PATIENCE, "kubectl {arguments:?} goes on to print\n{out}");
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    pub(crate) fn end(mut self) {
        let id = self.process.id().to_string();
        let asked = Command::new("kill").args(["-INT", &id]).status().expect("kill");
        assert!(asked.success());
        let ended = self.process.wait().expect("it ends");
        assert_eq!(ended.code(), Some(0), "Ctrl-C is how it is meant to end");
        assert!(!self.kubeconfig.exists(), "nothing is left");
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        // It has ended by itself where the test went well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether there is a kubectl; says on stderr where not.
fn has_kubectl() -> bool {
    use std::io::Write as _;
    let found = Command::new("kubectl").args(["version", "--client"]).output();
    let has = found.is_ok_and(|output| output.status.success());
    if !has {
        // Nobody may be listening.
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
    assert!(sandbox.said.contains("kubectl get nodes"), "{}", sandbox.said);
    let nodes = sandbox.ran(&["get", "nodes"]);
    assert_eq!(nodes.matches(" Ready ").count(), 3, "{nodes}");
    let all = sandbox.ran(&["get", "pods", "-A", "--chunk-size=5", "--no-headers"]);
    assert!(all.lines().count() > 10, "paged: {all}");
    let sorted = ["get", "pods", "-n", "kube-system", "--no-headers", "-o", "wide"];
    let sorted = sandbox.ran(&[&sorted[..], &["--sort-by=.spec.nodeName"]].concat());
    let on: Vec<&str> = sorted.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(on.len() == 3 && on.is_sorted(), "{sorted}");
    let everything = sandbox.ran(&["get", "all", "-n", "shop"]);
    assert!(everything.contains("pod/web-") && everything.contains("deployment.apps/web"));
    assert_eq!(sandbox.ran(&["auth", "can-i", "create", "pods"]), "yes\n");

    // A watch tells what a drain does.
    let mut watch = sandbox.kubectl(&["get", "pods", "-n", "shop", "--watch", "--no-headers"]);
    let mut watch = watch.stdout(Stdio::piped()).spawn().expect("kubectl");
    let first = nodes.lines().nth(1).and_then(|line| line.split(' ').next()).expect("a node");
    let drained = sandbox.ran(&["drain", first, "--ignore-daemonsets", "--timeout=60s"]);
    assert!(drained.contains("evicted") && drained.contains("drained"), "{drained}");
    let left = ["get", "pods", "-n", "shop", "-o", "name", "--field-selector"];
    let left = sandbox.ran(&[&left[..], &[&format!("spec.nodeName={first}")]].concat());
    assert_eq!(left, "", "nothing of the shop is left on it");
    let node = sandbox.ran(&["get", "node", first]);
    assert!(node.contains("Ready,SchedulingDisabled"), "{node}");
    watch.kill().expect("it runs");
    let mut told = String::new();
    watch.stdout.take().expect("piped").read_to_string(&mut told).expect("text");
    watch.wait().expect("it ends");
    assert!(told.contains("Terminating"), "{told}");

    sandbox.ran(&["uncordon", first]);
    sandbox.ran(&["taint", "node", first, "dedicated=ml:NoSchedule"]);
    sandbox.ran(&["label", "node", first, "team=ml"]);
    let labelled =
        sandbox.ran(&["get", "nodes", "-l", "team=ml", "-o", "jsonpath={..taints[*].key}"]);
    assert_eq!(labelled, "dedicated");
    sandbox.ran(&["scale", "-n", "shop", "deployment/web", "--replicas=2"]);
    let web = ["get", "deployment", "web", "-n", "shop", "--no-headers"];
    sandbox.until(&web, |out| out.contains(" 2/2 "));
    sandbox.ran(&["delete", "-n", "shop", "deployment/cart", "--timeout=30s"]);
    let pods = ["get", "pods", "-n", "shop", "-o", "name"];
    sandbox.until(&pods, |out| !out.contains("/cart-"));
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
    let scalers = sandbox.ran(&["get", "hpa", "-n", "shop"]);
    assert!(
        scalers.contains("Deployment/web") && scalers.contains("cpu: <unknown>/80%"),
        "{scalers}"
    );
    let schedules = sandbox.ran(&["get", "cronjobs", "-n", "shop"]);
    assert!(schedules.contains("nightly") && schedules.contains("0 3 * * *"), "{schedules}");
    for kind in ["capacityplans", "capacitypools"] {
        assert_eq!(sandbox.ran(&["get", kind]), "", "{kind}: none yet");
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
    for (flags, replicas, label, said) in [
        (&[][..], 1, "a: one", "deployment.apps/probe created"),
        (&[], 3, "b: two", "deployment.apps/probe configured"),
        (&["--server-side", "--force-conflicts"], 2, "c: three", "probe serverside-applied"),
    ] {
        std::fs::write(&file, app(replicas, label)).expect("written");
        let applied = sandbox.ran(&[&["apply", "-f", path][..], flags].concat());
        assert!(applied.contains(said), "{applied}");
        sandbox.until(&pods, running(usize::try_from(replicas).expect("a count")));
    }
    let labels = ["get", "deployment", "probe", "-n", "shop", "-o", "jsonpath={.metadata.labels}"];
    let found = sandbox.ran(&labels);
    assert!(found.contains("\"c\":\"three\"") && !found.contains("\"a\""), "{found}");
    // What is no longer said goes.
    std::fs::write(&file, app(2, "d: four")).expect("written");
    sandbox.ran(&["apply", "--server-side", "-f", path]);
    let found = sandbox.ran(&labels);
    assert!(found.contains("\"d\"") && !found.contains("\"c\""), "{found}");
    let again = sandbox.ran(&["apply", "--server-side", "--dry-run=server", "-f", path]);
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
    let mut said = BufReader::new(sandbox.stderr.take().expect("piped")).lines();
    let first = said.next().expect("a line").expect("text");
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
    sandbox.until(&probe, |out| out.contains("Running"));
    sandbox.end();
}

/// Runs this program in the environment that the sandbox tells to set.
#[cfg(feature = "cluster")]
fn fleetwright(sandbox: &Sandbox, code: i32, arguments: &[&str]) -> String {
    let set = sandbox.said.lines().filter_map(|line| line.trim().strip_prefix("export "));
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
    fleetwright(&sandbox, 0, &["apply", plan, "--auto-approve"]);
    let again = fleetwright(&sandbox, 0, &[&live[..], &["--detailed-exitcode"]].concat());
    assert!(again.contains("No changes."), "{again}");
    sandbox.end();
}

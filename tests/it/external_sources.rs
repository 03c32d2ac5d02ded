//! `sources update` and plans of its content, with real servers on 127.0.0.1: a chart repository made
//! by `helm repo index`, a Git server (`git http-backend`), and an OCI registry.
//!
//! The programs are installed by `.ci/tools`. Without one of them, stderr names the skipped test.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use crate::binary::{CommandResult, Workspace};
use crate::missing_tool::not_run;

const AT: [&str; 2] = ["--at", "2026-09-01T10:00:00Z"];

const DEPLOYMENT: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: NAME, namespace: shop }
spec:
  replicas: 2
  selector: { matchLabels: { app: r } }
  template:
    metadata: { labels: { app: r } }
    spec: { containers: [ { name: c, image: x, resources: { requests: { cpu: 250m } } } ] }
";

const TEMPLATE: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: { name: \"{{ .Release.Name }}-{{ .Chart.Name }}\", namespace: {{ .Release.Namespace }} }
spec:
  replicas: {{ .Values.replicas }}
  selector: { matchLabels: { app: {{ .Chart.Name }} } }
  template:
    metadata: { labels: { app: {{ .Chart.Name }} } }
    spec:
      containers:
      - { name: c, image: x, resources: { requests: { cpu: {{ .Values.cpu }} } } }
";

/// A server that ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the path of a program; prints that the test is not run if it is absent.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_file());
    if found.is_none() {
        not_run(name, &format!("there is no {name} for external sources"));
    }
    found
}

fn run(program: &Path, arguments: &[&str], directory: &Path) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(directory).env("HOME", directory);
    for (name, value) in [("NAME", "a"), ("EMAIL", "a@example.com")] {
        command.env(format!("GIT_AUTHOR_{name}"), value);
        command.env(format!("GIT_COMMITTER_{name}"), value);
    }
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{} {arguments:?}: {said}", program.display());
}

/// Waits until a server answers on a port of this host.
fn wait_for(port: u16) {
    for _ in 0..200 {
        if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("no server on port {port}");
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    listener.local_addr().expect("an address").port()
}

/// Servers of charts and bases, and a workspace whose settings allow them.
struct Elsewhere {
    workspace: Workspace,
    helm: PathBuf,
    charts: u16,
    git: u16,
    servers: Vec<Server>,
}

impl Elsewhere {
    /// Starts the servers; `None` if a program is absent.
    fn start() -> Option<Self> {
        let (helm, python, git) = (program("helm")?, program("python3")?, program("git")?);
        program("kubectl")?;
        let workspace = Workspace::empty();
        for (name, version) in
            [("web", "1.2.0"), ("web", "1.3.0"), ("web", "2.0.0"), ("cache", "0.1.0")]
        {
            package(&workspace, &helm, name, version);
        }
        run(&helm, &["repo", "index", "charts"], &workspace.path("elsewhere"));
        workspace.write("elsewhere/base/deploy/kustomization.yaml", "resources: [d.yaml]\n");
        let deployment = |name: &str| DEPLOYMENT.replace("NAME", name);
        workspace.write("elsewhere/base/deploy/d.yaml", &deployment("base"));
        workspace.write("elsewhere/base/plain/d.yaml", &deployment("plain"));
        workspace.write("elsewhere/base/values/cache.yaml", "replicas: 5\n");
        let base = workspace.path("elsewhere/base");
        run(&git, &["init", "--quiet", "--initial-branch=main"], &base);
        run(&git, &["add", "."], &base);
        run(&git, &["commit", "--quiet", "--message=one"], &base);
        run(&git, &["tag", "v1"], &base);
        run(&git, &["tag", "v1.0.0"], &base);
        run(
            &git,
            &["clone", "--quiet", "--bare", "base", "git/base.git"],
            &workspace.path("elsewhere"),
        );

        let charts = free_port();
        let directory = workspace.path("elsewhere/charts").display().to_string();
        let port = charts.to_string();
        let server = Command::new(&python)
            .args(["-m", "http.server", "--bind", "127.0.0.1", "--directory", &directory, &port])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let static_server = Server(server.expect("the server starts"));
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/tools/git_server.py");
        let server = Command::new(&python)
            .arg(script)
            .arg(workspace.path("elsewhere/git"))
            .stdout(Stdio::piped())
            .spawn();
        let mut git_server = Server(server.expect("the server starts"));
        let mut line = String::new();
        let out = git_server.0.stdout.take().expect("it is piped");
        BufReader::new(out).read_line(&mut line).expect("a line");
        let git = line.trim().parse().expect("a port");
        wait_for(charts);
        let mut elsewhere =
            Self { workspace, helm, charts, git, servers: vec![static_server, git_server] };
        elsewhere.use_cache("cache");
        let path = std::env::var("PATH").expect("a PATH");
        elsewhere.workspace.variables.insert("PATH".to_owned(), path);
        elsewhere.write("fleetwright.yaml", FLEET);
        Some(elsewhere)
    }

    fn use_cache(&mut self, name: &str) {
        let cache = self.workspace.path(name).display().to_string();
        self.workspace.variables.insert("XDG_CACHE_HOME".to_owned(), cache);
    }

    /// Writes a file of the repository, with the ports of the servers.
    fn write(&self, name: &str, text: &str) {
        let text = text.replace("CHARTS", &format!("127.0.0.1:{}", self.charts));
        let text = text.replace("GIT", &format!("127.0.0.1:{}", self.git));
        self.workspace.write(&format!("tree/{name}"), &text);
    }

    fn run(&self, arguments: &[&str]) -> CommandResult {
        self.workspace.run(&[arguments, &["tree"]].concat())
    }

    fn update(&self) -> CommandResult {
        let ran = self.run(&["sources", "update"]);
        assert_eq!(ran.code, Some(0), "{}{}", ran.out, ran.err);
        ran
    }

    fn plan(&self) -> Value {
        let ran = self.run(&[&["plan", "--format", "json"][..], &AT].concat());
        serde_json::from_str(&ran.out).unwrap_or_else(|_| panic!("{}{}", ran.out, ran.err))
    }

    /// Returns the planned pods of each workload.
    fn pods(&self) -> BTreeMap<String, u64> {
        let plan = self.plan();
        let rows = plan["capacity"]["demand"].as_array().cloned().unwrap_or_default();
        let row = |row: &Value| {
            let workload = &row["workload"];
            let (namespace, name) = (workload["namespace"].as_str()?, workload["name"].as_str()?);
            Some((format!("{namespace}/{name}"), row["planned"].as_u64()?))
        };
        rows.iter().filter_map(row).collect()
    }

    fn unresolved(&self) -> u64 {
        self.plan()["capacity"]["pods"]["unresolved"].as_u64().expect("a count")
    }

    /// Returns the path of the only content in the cache that contains `bytes`.
    fn cached(&self) -> Vec<PathBuf> {
        let cache = self.workspace.path("cache/fleetwright/sources");
        let entries = fs::read_dir(cache).expect("the cache");
        entries.map(|entry| entry.expect("an entry").path()).collect()
    }
}

/// Packages a chart of `version` with real Helm.
fn package(workspace: &Workspace, helm: &Path, name: &str, version: &str) {
    let directory = format!("elsewhere/{name}");
    workspace.write(
        &format!("{directory}/Chart.yaml"),
        &format!("apiVersion: v2\nname: {name}\nversion: {version}\n"),
    );
    workspace.write(&format!("{directory}/values.yaml"), "replicas: 1\ncpu: 100m\n");
    workspace.write(&format!("{directory}/templates/d.yaml"), TEMPLATE);
    run(helm, &["package", name, "--destination", "charts"], &workspace.path("elsewhere"));
}

const FLEET: &str = "\
apiVersion: fleetwright.dev/v1
kind: Fleet
metadata: { name: prod }
spec:
  cluster: { name: prod, region: us-east-1 }
  delivery:
    repositories: [https://example.com/acme/infra.git]
    privateHosts: [http://CHARTS, http://GIT]
    mirrors: { https://charts.example.invalid/: http://CHARTS/ }
";

const FLUX: &str = "\
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmRepository
metadata: { name: charts, namespace: flux-system }
spec: { url: https://charts.example.invalid/ }
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: HelmChart
metadata: { name: shared, namespace: flux-system }
spec: { chart: web, version: 2.x, sourceRef: { kind: HelmRepository, name: charts } }
---
apiVersion: source.toolkit.fluxcd.io/v1
kind: GitRepository
metadata: { name: base, namespace: flux-system }
spec: { url: http://GIT/base.git, ref: { semver: 1.x } }
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: { name: one, namespace: shop }
spec:
  chart:
    spec:
      chart: web
      version: 1.x
      sourceRef: { kind: HelmRepository, name: charts, namespace: flux-system }
  values: { replicas: 3 }
---
apiVersion: helm.toolkit.fluxcd.io/v2
kind: HelmRelease
metadata: { name: two, namespace: shop }
spec: { chartRef: { kind: HelmChart, name: shared, namespace: flux-system } }
---
apiVersion: kustomize.toolkit.fluxcd.io/v1
kind: Kustomization
metadata: { name: plain, namespace: flux-system }
spec: { sourceRef: { kind: GitRepository, name: base }, path: ./plain }
";

const ARGO: &str = "\
apiVersion: argoproj.io/v1alpha1
kind: Application
metadata: { name: three, namespace: argocd }
spec:
  destination: { server: https://kubernetes.default.svc, namespace: shop }
  sources:
  - repoURL: https://charts.example.invalid
    chart: cache
    targetRevision: 0.1.0
    helm: { valueFiles: [$own/values/cache.yaml, $base/values/cache.yaml] }
  - { repoURL: https://example.com/acme/infra.git, targetRevision: main, ref: own }
  - { repoURL: http://GIT/base.git, targetRevision: v1, ref: base }
";

/// Kustomizations of a remote base, of charts, and a chart with a dependency.
const RENDERED: &str = "  sources:
  - path: .
  - { path: remote, render: kustomize }
  - { path: inflated, render: kustomize }
  - { path: umbrella, render: helm }
";

fn full_tree(elsewhere: &Elsewhere) {
    elsewhere.write("fleetwright.yaml", &format!("{FLEET}{RENDERED}"));
    elsewhere.write("flux.yaml", FLUX);
    elsewhere.write("argo.yaml", ARGO);
    elsewhere.write("values/cache.yaml", "replicas: 4\ncpu: 200m\n");
    let remote = "resources: ['http://GIT/base.git//deploy?ref=v1']\nnamePrefix: x-\n";
    elsewhere.write("remote/kustomization.yaml", remote);
    elsewhere.write(
        "inflated/kustomization.yaml",
        "helmCharts: [{name: web, repo: 'https://charts.example.invalid', version: 1.2.0, \
         releaseName: four, namespace: shop}]\n",
    );
    elsewhere.write(
        "umbrella/Chart.yaml",
        "apiVersion: v2\nname: umbrella\nversion: 1.0.0\ndependencies:\n\
         - {name: web, version: ~1.2.0, repository: 'https://charts.example.invalid'}\n",
    );
}

#[test]
fn charts_and_bases_from_elsewhere_are_planned_offline() {
    let Some(mut elsewhere) = Elsewhere::start() else { return };
    full_tree(&elsewhere);
    let before = elsewhere.run(&[&["plan"][..], &AT].concat());
    let hint = "is not in fleetwright.lock.json; run `fleetwright sources update`";
    assert!(before.out.contains(hint), "{}", before.out);
    let checked = elsewhere.run(&["sources", "update", "--check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.out);

    let updated = elsewhere.update();
    assert!(updated.out.contains("+ chart web 1.x of https://charts.example.invalid at 1.3.0"));
    let lock = elsewhere.workspace.read("tree/fleetwright.lock.json");
    assert!(lock.contains("\"requested\": \"~1.2.0\"") && !lock.contains("CHARTS"), "{lock}");
    assert_eq!(elsewhere.unresolved(), 0);
    let expected = [
        ("shop/one-web", 3),
        ("shop/two-web", 1),
        ("shop/plain", 2),
        ("shop/three-cache", 5),
        ("shop/x-base", 2),
        ("shop/four-web", 1),
        ("default/umbrella-web", 1),
    ];
    let pods = elsewhere.pods();
    let expected = expected.map(|(workload, count)| (workload.to_owned(), count));
    assert_eq!(pods, BTreeMap::from(expected));

    // Another computer downloads the locked versions, although newer ones exist.
    let online = elsewhere.plan();
    package(&elsewhere.workspace, &elsewhere.helm, "web", "1.4.0");
    let directory = elsewhere.workspace.path("elsewhere");
    run(&elsewhere.helm, &["repo", "index", "charts"], &directory);
    elsewhere.use_cache("cache2");
    let refill = elsewhere.run(&["sources", "update", "--check"]);
    assert_eq!(refill.code, Some(0), "{}{}", refill.out, refill.err);
    elsewhere.use_cache("cache");
    elsewhere.servers.clear();
    assert_eq!(elsewhere.plan(), online, "it needs no server");
    let check = elsewhere.run(&["sources", "update", "--check"]);
    assert_eq!(check.code, Some(0), "{}{}", check.out, check.err);
}

#[test]
fn altered_content_is_refused() {
    let Some(elsewhere) = Elsewhere::start() else { return };
    elsewhere.write("flux.yaml", FLUX);
    elsewhere.update();
    assert_eq!(elsewhere.unresolved(), 0);
    for path in elsewhere.cached() {
        let mut content = fs::read(&path).expect("read");
        if let Some(last) = content.last_mut() {
            *last ^= 1;
        }
        fs::write(&path, content).expect("altered");
    }
    let plan = elsewhere.run(&[&["plan"][..], &AT].concat());
    assert_eq!(plan.out.matches(" is refused: its content in the cache is not that of").count(), 3);
    assert_eq!(elsewhere.pods().len(), 0, "nothing of it is used");
    // The server has the content of the lock file, so that the check repairs the cache.
    let repaired = elsewhere.run(&["sources", "update", "--check"]);
    assert_eq!(repaired.code, Some(0), "{}", repaired.out);
    assert_eq!(elsewhere.unresolved(), 0);

    // A server with other content under the same version fails the check.
    for path in elsewhere.cached() {
        fs::remove_file(path).expect("removed");
    }
    let cpu = "replicas: 1\ncpu: 64\n";
    elsewhere.workspace.write("elsewhere/web/values.yaml", cpu);
    let chart = "apiVersion: v2\nname: web\nversion: 1.3.0\n";
    elsewhere.workspace.write("elsewhere/web/Chart.yaml", chart);
    let directory = elsewhere.workspace.path("elsewhere");
    run(&elsewhere.helm, &["package", "web", "--destination", "charts"], &directory);
    run(&elsewhere.helm, &["repo", "index", "charts"], &directory);
    let checked = elsewhere.run(&["sources", "update", "--check"]);
    assert_eq!(checked.code, Some(1), "{}", checked.out);
    assert!(checked.out.contains("1.x of https://charts.example.invalid is refused: its content"));
}

#[test]
fn private_hosts_need_a_setting() {
    let Some(elsewhere) = Elsewhere::start() else { return };
    elsewhere.write("flux.yaml", FLUX);
    let closed = FLEET.replace("    privateHosts: [http://CHARTS, http://GIT]\n", "");
    elsewhere.write("fleetwright.yaml", &closed);
    let refused = elsewhere.run(&["sources", "update"]);
    assert_eq!(refused.code, Some(1), "{}", refused.out);
    assert_eq!(refused.out.matches("is not reached without TLS").count(), 3, "{}", refused.out);
    let tls = closed.replace("http://CHARTS/", "https://CHARTS/");
    elsewhere.write("fleetwright.yaml", &tls);
    let refused = elsewhere.run(&["sources", "update"]);
    assert!(refused.out.contains("has the private address 127.0.0.1"), "{}", refused.out);
}

/// The author of a pull request writes its settings. Those of its base decide which hosts are reached.
#[test]
fn pull_request_does_not_open_hosts_for_its_own_downloads() {
    let Some(elsewhere) = Elsewhere::start() else { return };
    elsewhere.write("flux.yaml", FLUX);
    let closed = FLEET.replace("    privateHosts: [http://CHARTS, http://GIT]\n", "");
    elsewhere.write("fleetwright.yaml", &closed);
    for arguments in
        [&["init", "--quiet", "tree"][..], &["-C", "tree", "add", "."], &COMMIT_OF_TREE]
    {
        elsewhere.workspace.git(arguments);
    }
    elsewhere.write("fleetwright.yaml", FLEET);
    let guarded = elsewhere.run(&["sources", "update", "--guard-ref", "HEAD"]);
    assert_eq!(guarded.code, Some(1), "{}", guarded.out);
    assert_eq!(guarded.out.matches("is not reached without TLS").count(), 3, "{}", guarded.out);
    elsewhere.workspace.git(&["-C", "tree", "add", "."]);
    elsewhere.workspace.git(&COMMIT_OF_TREE);
    let merged = elsewhere.run(&["sources", "update", "--guard-ref", "HEAD"]);
    assert_eq!(merged.code, Some(0), "{}{}", merged.out, merged.err);
}

const COMMIT_OF_TREE: [&str; 5] = ["-C", "tree", "commit", "--quiet", "--message=one"];

#[test]
fn charts_of_an_oci_registry_are_planned() {
    let Some(registry) = program("docker-registry") else { return };
    let Some(mut elsewhere) = Elsewhere::start() else { return };
    let port = free_port();
    let storage = elsewhere.workspace.path("registry").display().to_string();
    elsewhere.workspace.write(
        "registry.yml",
        &format!(
            "version: 0.1\nstorage: {{filesystem: {{rootdirectory: '{storage}'}}}}\n\
             http: {{addr: '127.0.0.1:{port}'}}\n"
        ),
    );
    let server = Command::new(registry)
        .arg("serve")
        .arg(elsewhere.workspace.path("registry.yml"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    elsewhere.servers.push(Server(server.expect("the registry starts")));
    wait_for(port);
    let charts = elsewhere.workspace.path("elsewhere/charts");
    for archive in ["web-1.2.0.tgz", "web-1.3.0.tgz", "cache-0.1.0.tgz"] {
        let to = format!("oci://127.0.0.1:{port}/team");
        run(&elsewhere.helm, &["push", "--plain-http", archive, &to], &charts);
    }
    let fleet = FLEET.replace("http://GIT]", &format!("http://127.0.0.1:{port}]"));
    elsewhere.write("fleetwright.yaml", &fleet);
    elsewhere.write(
        "flux.yaml",
        &format!(
            "apiVersion: source.toolkit.fluxcd.io/v1\nkind: OCIRepository\n\
             metadata: {{name: web, namespace: shop}}\n\
             spec: {{url: 'oci://127.0.0.1:{port}/team/web', ref: {{semver: 1.x}}}}\n---\n\
             apiVersion: source.toolkit.fluxcd.io/v1\nkind: HelmRepository\n\
             metadata: {{name: team, namespace: shop}}\n\
             spec: {{type: oci, url: 'oci://127.0.0.1:{port}/team'}}\n---\n\
             apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\n\
             metadata: {{name: one, namespace: shop}}\n\
             spec: {{chartRef: {{kind: OCIRepository, name: web}}, values: {{replicas: 2}}}}\n---\n\
             apiVersion: helm.toolkit.fluxcd.io/v2\nkind: HelmRelease\n\
             metadata: {{name: two, namespace: shop}}\n\
             spec: {{chart: {{spec: {{chart: cache, version: 0.1.0, \
             sourceRef: {{kind: HelmRepository, name: team}}}}}}}}\n"
        ),
    );
    let updated = elsewhere.update();
    assert!(updated.out.contains("/team/web 1.x at 1.3.0"), "{}", updated.out);
    let pods = elsewhere.pods();
    assert_eq!(pods.values().sum::<u64>(), 3, "{pods:?}");
    elsewhere.servers.clear();
    assert_eq!((elsewhere.unresolved(), elsewhere.pods()), (0, pods), "it needs no registry");
}

//! The control plane of one test: etcd and kube-apiserver on free ports. It ends with the test.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kube::Client;
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use tempfile::TempDir;

use crate::missing_tool::not_run;

/// Timeout for the start of the control plane.
const START_TIMEOUT: Duration = Duration::from_secs(90);

/// Environment variable with the directory of the binaries.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Controllers that workloads need.
const CONTROLLERS: &str = "deployment-controller,replicaset-controller,statefulset-controller,\
     daemonset-controller,job-controller,disruption-controller";

/// A running control plane.
pub(super) struct ControlPlane {
    processes: Vec<Child>,
    directory: TempDir,
    pub(super) kubeconfig: PathBuf,
}

impl ControlPlane {
    /// Starts a control plane. Returns `None`, with the reason on stderr, without the binaries.
    pub(super) fn start() -> Option<Self> {
        let Some(assets) = std::env::var_os(ASSETS).map(PathBuf::from) else {
            not_run(
                "control-plane",
                &format!("{ASSETS} names no directory with etcd and kube-apiserver"),
            );
            return None;
        };
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path();
        let [etcd, peer, api] = free_ports();
        let url = |port: u16| format!("http://127.0.0.1:{port}");
        run(Command::new("openssl").args(["genrsa", "-out"]).arg(root.join("sa.key")).arg("2048"));
        fs::write(
            root.join("tokens.csv"),
            "secret,admin,admin,system:masters\napply,apply,apply,fleetwright-apply\n",
        )
        .expect("written");
        let mut processes = vec![start(
            Command::new(assets.join("etcd"))
                .arg("--data-dir")
                .arg(root.join("etcd"))
                .args(["--unsafe-no-fsync", "--log-level", "error"])
                .args(["--listen-client-urls", &url(etcd), "--advertise-client-urls", &url(etcd)])
                .args(["--listen-peer-urls", &url(peer)])
                .args(["--initial-advertise-peer-urls", &url(peer)])
                .args(["--initial-cluster", &format!("default={}", url(peer))]),
            &root.join("etcd.log"),
        )];
        processes.push(start(
            Command::new(assets.join("kube-apiserver"))
                .args(["--etcd-servers", &url(etcd)])
                .args(["--bind-address", "127.0.0.1", "--advertise-address", "127.0.0.1"])
                .args(["--secure-port", &api.to_string(), "--cert-dir"])
                .arg(root.join("certs"))
                .args(["--service-account-issuer", "https://kubernetes.default.svc"])
                .arg("--service-account-signing-key-file")
                .arg(root.join("sa.key"))
                .arg("--service-account-key-file")
                .arg(root.join("sa.key"))
                .args(["--service-cluster-ip-range", "10.96.0.0/16"])
                .args(["--authorization-mode", "RBAC", "--token-auth-file"])
                .arg(root.join("tokens.csv"))
                .args(["--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition"])
                .args(["--endpoint-reconciler-type", "none"]),
            &root.join("apiserver.log"),
        ));
        let kubeconfig = root.join("kubeconfig");
        fs::write(&kubeconfig, config(api)).expect("written");
        let plane = Self { processes, directory, kubeconfig };
        plane.wait_until_ready();
        Some(plane)
    }

    /// Starts a control plane with controllers and the scheduler. Returns `None`, with the reason
    /// on stderr, if a binary is missing.
    pub(super) fn start_with_controllers() -> Option<Self> {
        let mut plane = Self::start()?;
        let assets = PathBuf::from(std::env::var_os(ASSETS)?);
        let root = plane.directory.path();
        for (name, arguments) in [
            ("kube-scheduler", &[][..]),
            // Without the node lifecycle controller and without cloud controllers.
            ("kube-controller-manager", &["--controllers", CONTROLLERS]),
        ] {
            let binary = assets.join(name);
            if !binary.exists() {
                not_run("control-plane", &format!("{ASSETS} has no {name}"));
                return None;
            }
            let mut command = Command::new(binary);
            command.arg("--kubeconfig").arg(&plane.kubeconfig).args(arguments);
            command.args(["--leader-elect=false", "--secure-port=0"]);
            plane.processes.push(start(&mut command, &root.join(format!("{name}.log"))));
        }
        Some(plane)
    }

    /// Starts `kubectl proxy` as `admin`. Returns its unencrypted URL.
    pub(super) fn plain_url(&mut self) -> String {
        use std::io::{BufRead as _, BufReader};
        let assets = PathBuf::from(std::env::var_os(ASSETS).expect("checked when it started"));
        let mut process = Command::new(assets.join("kubectl"))
            .args(["proxy", "--port=0", "--kubeconfig"])
            .arg(&self.kubeconfig)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("kubectl");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("piped");
        BufReader::new(stdout).read_line(&mut line).expect("it prints its address");
        self.processes.push(process);
        let (_, address) = line.trim().rsplit_once(' ').expect("an address");
        format!("http://{address}")
    }

    /// Returns the client configuration of `user`: `admin` with all permissions, or `apply` with
    /// the permissions of `deploy/kubernetes/rbac.yaml`.
    pub(super) async fn config(&self, user: &str) -> Config {
        let read = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        let options =
            KubeConfigOptions { user: Some(user.to_owned()), ..KubeConfigOptions::default() };
        Config::from_custom_kubeconfig(read, &options).await.expect("a configuration")
    }

    fn wait_until_ready(&self) {
        let runtime = super::cluster::runtime();
        let deadline = Instant::now() + START_TIMEOUT;
        runtime.block_on(async {
            let client = Client::try_from(self.config("admin").await).expect("a client");
            while !is_ready(&client).await {
                assert!(Instant::now() < deadline, "no control plane: {}", self.log_tail());
                tokio::time::sleep(Duration::from_millis(250)).await;
            }
        });
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(self.directory.path().join("apiserver.log"));
        let log = log.unwrap_or_default();
        log.lines().rev().take(5).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for process in self.processes.iter_mut().rev() {
            // The process may have exited already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

async fn is_ready(client: &Client) -> bool {
    let request = http::Request::get("/readyz").body(Vec::new()).expect("a request");
    client.request_text(request).await.is_ok_and(|text| text == "ok")
}

fn free_ports<const N: usize>() -> [u16; N] {
    let sockets: Vec<TcpListener> =
        (0..N).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let ports: Vec<u16> =
        sockets.iter().map(|socket| socket.local_addr().expect("an address").port()).collect();
    ports.try_into().expect("N ports")
}

fn start(command: &mut Command, log: &Path) -> Child {
    let out = File::create(log).expect("a log");
    let err = out.try_clone().expect("a log");
    command.stdin(Stdio::null()).stdout(out).stderr(err).spawn().expect("a process")
}

fn run(command: &mut Command) {
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    assert!(status.is_ok_and(|status| status.success()), "{command:?}");
}

fn config(api: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {{server: \"https://127.0.0.1:{api}\", \
         insecure-skip-tls-verify: true}}}}]\n\
         users: [{{name: admin, user: {{token: secret}}}}, \
         {{name: apply, user: {{token: apply}}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: admin}}}}]\n"
    )
}

"""A Kubernetes control plane on free ports of the loopback interface."""

import subprocess
import time

from processes import binary

START_TIMEOUT = 120
# Simulated kubelets send no heartbeats, and EC2 addresses need no CIDR allocation.
DISABLED_CONTROLLERS = (
    "nodeipam",
    "node-route-controller",
    "cloud-node-lifecycle-controller",
    "ttl-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
)
# The clients are as fast as the server. EKS allows a similar rate.
CLIENT_RATE = ("--kube-api-qps=500", "--kube-api-burst=1000")
KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: test, cluster: {{server: "https://127.0.0.1:{port}", insecure-skip-tls-verify: true}}}}]
users: [{{name: admin, user: {{token: secret}}}}]
contexts: [{{name: test, context: {{cluster: test, user: admin}}}}]
"""


def start(processes):
    """Starts etcd, kube-apiserver, kube-controller-manager and kube-scheduler.

    Returns the path of the kubeconfig.
    """
    root = processes.directory
    etcd, peer, api = processes.free_ports(3)
    _write_credentials(root)
    _start_etcd(processes, etcd, peer)
    _start_api_server(processes, etcd, api)
    kubeconfig = root / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG.format(port=api))
    _wait_until_ready(kubeconfig, root / "kube-apiserver.log")
    _start_controllers(processes, kubeconfig)
    return kubeconfig


def kubectl(kubeconfig, *arguments, **options):
    """Runs kubectl. Returns the finished process."""
    command = [str(binary("kubectl")), "--kubeconfig", str(kubeconfig), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, **options)


def _write_credentials(root):
    (root / "tokens.csv").write_text("secret,admin,admin,system:masters\n")
    command = ["openssl", "genrsa", "-out", str(root / "sa.key"), "2048"]
    subprocess.run(command, check=True, capture_output=True)


def _start_etcd(processes, client_port, peer_port):
    client, peer = (f"http://127.0.0.1:{port}" for port in (client_port, peer_port))
    command = [binary("etcd"), "--data-dir", processes.directory / "etcd", "--unsafe-no-fsync"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
    command += ["--initial-cluster", f"default={peer}", "--log-level", "warn"]
    processes.start("etcd", command)


def _start_api_server(processes, etcd_port, port):
    root = processes.directory
    command = [binary("kube-apiserver"), "--etcd-servers", f"http://127.0.0.1:{etcd_port}"]
    command += ["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"]
    command += ["--secure-port", port, "--cert-dir", root / "certs"]
    command += ["--token-auth-file", root / "tokens.csv", "--authorization-mode=RBAC"]
    command += ["--service-account-issuer=https://kubernetes.default.svc"]
    command += ["--service-account-key-file", root / "sa.key"]
    command += ["--service-account-signing-key-file", root / "sa.key"]
    command += ["--service-cluster-ip-range=10.0.0.0/16", "--allow-privileged=true"]
    command += ["--disable-admission-plugins=ServiceAccount", "--endpoint-reconciler-type=none"]
    processes.start("kube-apiserver", command)


def _start_controllers(processes, kubeconfig):
    disabled = ",".join(f"-{name}" for name in DISABLED_CONTROLLERS)
    common = ["--kubeconfig", kubeconfig, "--leader-elect=false", "--bind-address=127.0.0.1"]
    manager_port, scheduler_port = processes.free_ports(2)
    command = [binary("kube-controller-manager"), *common, *CLIENT_RATE]
    command += ["--secure-port", manager_port, f"--controllers=*,{disabled}"]
    command += ["--service-account-private-key-file", processes.directory / "sa.key"]
    command += ["--concurrent-deployment-syncs=20", "--concurrent-replicaset-syncs=20"]
    processes.start("kube-controller-manager", command)
    command = [binary("kube-scheduler"), *common, *CLIENT_RATE, "--secure-port", scheduler_port]
    processes.start("kube-scheduler", command)


def _wait_until_ready(kubeconfig, log):
    deadline = time.time() + START_TIMEOUT
    while kubectl(kubeconfig, "get", "namespace", "default").returncode != 0:
        if time.time() > deadline:
            tail = "\n".join(log.read_text().splitlines()[-5:])
            raise RuntimeError(f"kube-apiserver is not ready:\n{tail}")
        time.sleep(0.5)

"""Trees of manifests: a copy with settings in a bare Git repository, and delivery to the cluster."""

import shutil
import subprocess
from pathlib import Path

import yaml

from account import INSTANCE_PROFILE
from control_plane import kubectl

# Kinds that come before all others, in this order.
FIRST_KINDS = ("Namespace", "PriorityClass", "DaemonSet")
# API groups that every API server has.
BUILTIN_GROUPS = ("", "apps", "batch", "policy", "autoscaling", "scheduling.k8s.io")
GIT_IDENTITY = ("-c", "user.name=test", "-c", "user.email=test@example.com")


class Tree:
    """A working copy of a tree."""

    def __init__(self, source, directory):
        self.name, self.root = Path(source).name, Path(directory) / "tree"
        self.bare = Path(directory) / "fleet.git"
        shutil.copytree(source, self.root, copy_function=shutil.copyfile)
        for path in [self.root, *self.root.rglob("*")]:
            path.chmod(path.stat().st_mode | 0o200)
        self.fleet = yaml.safe_load((self.root / "fleetwright.yaml").read_text())
        self.cluster = self.fleet["spec"]["cluster"]

    def adapt(self, controller, selector_terms):
        """Writes the settings of the controller, and the selector terms of the account."""
        self.fleet["spec"].update(world="live", controller=controller)
        (self.root / "fleetwright.yaml").write_text(yaml.safe_dump(self.fleet))
        for path in self._manifests():
            documents = _read(path)
            classes = [item for item in documents if item.get("kind") == "EC2NodeClass"]
            for node_class in classes:
                node_class["spec"].pop("role", None)
                family = node_class["spec"].setdefault("amiFamily", "AL2023")
                if family != "AL2023":
                    raise ValueError(f"{path}: image family {family} is not simulated")
                node_class["spec"].update(instanceProfile=INSTANCE_PROFILE, **selector_terms)
            if classes:
                path.write_text(yaml.safe_dump_all(documents))

    def push(self):
        """Commits everything to the bare repository. Returns its URL."""
        subprocess.run(["git", "init", "-q", "--bare", "-b", "main", self.bare], check=True)
        for command in (
            ["init", "-q", "-b", "main"],
            ["add", "-A"],
            [*GIT_IDENTITY, "commit", "-q", "-m", "Add the tree"],
            ["push", "-q", str(self.bare), "main"],
        ):
            subprocess.run(["git", "-C", self.root, *command], check=True)
        return f"file://{self.bare}"

    def deliver(self, kubeconfig, directory):
        """Applies the workloads, as a delivery tool does."""
        objects = self._workloads()
        for kind in (*FIRST_KINDS, None):
            batch = [item for item in objects if _rank(item) == _rank({"kind": kind})]
            if not batch:
                continue
            path = Path(directory) / f"{kind or 'workloads'}.yaml"
            path.write_text(yaml.safe_dump_all(batch))
            applied = kubectl(kubeconfig, "create", "-f", path)
            if applied.returncode != 0:
                raise RuntimeError(f"kubectl cannot create {path}: {applied.stderr}")

    def _workloads(self):
        objects = [item for path in self._manifests() for item in _read(path)]
        objects = [item for item in objects if _is_builtin(item)]
        declared = {item["metadata"]["name"] for item in objects if item["kind"] == "Namespace"}
        used = {item["metadata"].get("namespace", "default") for item in objects}
        for name in sorted(used - declared - {"default", "kube-system"}):
            objects.append({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        return objects

    def _manifests(self):
        return sorted(p for p in self.root.rglob("*.y*ml") if p.name != "fleetwright.yaml")


def _read(path):
    return [item for item in yaml.safe_load_all(path.read_text()) if item]


def _is_builtin(item):
    version = item.get("apiVersion", "")
    group = version.split("/")[0] if "/" in version else ""
    return bool(version) and "kind" in item and group in BUILTIN_GROUPS


def _rank(item):
    kind = item["kind"]
    return FIRST_KINDS.index(kind) if kind in FIRST_KINDS else len(FIRST_KINDS)

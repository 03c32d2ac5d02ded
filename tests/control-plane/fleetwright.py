"""The program under test: its catalog, its plan, and its controller."""

import json
import os
import subprocess
from pathlib import Path

# The default budget launches a large fleet in several steps. Removals start within `QUIET`.
CONTROLLER = {
    "mode": "full",
    "poll": "5s",
    "settle": "20s",
    "launches": {"most": 10000, "within": "5m"},
}
LOG_FORMAT = ("--log-format", "json")


class Fleetwright:
    """The program in the environment of one run."""

    def __init__(self, directory, account, kubeconfig):
        self.binary, self.directory = os.environ["FLEETWRIGHT"], Path(directory)
        self.environment = {
            **os.environ,
            **account.environment(),
            "KUBECONFIG": str(kubeconfig),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            "NO_COLOR": "1",
        }
        self.environment.setdefault("FLEETWRIGHT_LOG", "info")

    def catalog(self, region):
        """Returns the instance types: what a node of each offers to pods, and its prices."""
        command = ["catalog", "list", "--allocatable", "-o", "json", "--region", region]
        types = json.loads(self._run(command))["types"]
        return {item["name"]: _instance_type(item) for item in types}

    def plan(self, tree, is_steered):
        """Returns the plan for the tree over the running cluster."""
        command = ["plan", str(tree.root), "--world", "live", "--format", "json"]
        text = self._run(command + ["--steer"] * is_steered)
        (self.directory / "plan.json").write_text(text)
        return json.loads(text)

    def start_controller(self, processes, url):
        """Starts the controller. Returns its process."""
        [port] = processes.free_ports(1)
        command = [self.binary, "run", url, "--ref", "main", "--world", "live", *LOG_FORMAT]
        command += ["--listen", f"127.0.0.1:{port}"]
        return processes.start("controller", command, env=self.environment)

    def start_apply(self, processes, tree):
        """Starts an apply of the tree, as a pipeline does. Returns its process."""
        command = [self.binary, "apply", tree.root, "--world", "live", "--auto-approve", "--json"]
        return processes.start("controller", command, env=self.environment)

    def _run(self, arguments):
        command = [self.binary, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, env=self.environment)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr}")
        return done.stdout


def resources(amounts):
    """Returns amounts of a plan as the API server writes them."""
    return {
        "cpu": f"{amounts['cpu_milli']}m",
        "memory": str(amounts["memory_bytes"]),
        "ephemeral-storage": str(amounts["ephemeral_storage_bytes"]),
        "pods": str(amounts["pods"]),
    }


def _instance_type(item):
    offerings = item["offerings"]
    return {
        "arch": item["arch"],
        "capacity": resources(item["capacity"]),
        "allocatable": resources(item["allocatable"]),
        "hourly": {f"{o['zone']}/{o['capacity_type']}": o["hourly"] for o in offerings},
    }

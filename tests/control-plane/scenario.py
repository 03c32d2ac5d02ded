"""One run: a control plane, an account, a tree, the controller, until nothing changes."""

import json
import sys
import time
from pathlib import Path

import account
import control_plane
import report
from fleetwright import CONTROLLER, Fleetwright, resources
from processes import Processes
from trees import Tree

HERE = Path(__file__).parent
POLL = 2
# Seconds without a change after which a run ends.
QUIET = 45
# The same while planned pods are pending or nodes are closed: the controller may still act.
QUIET_UNFINISHED = 90
DELIVERY_TIMEOUT = 180


class Scenario:
    """A run over one tree."""

    def __init__(self, source, directory, options):
        self.options, self.directory = options, Path(directory)
        self.directory.mkdir(parents=True)
        self.tree = Tree(source, self.directory)
        self.processes = Processes(self.directory)
        self.log = self.directory / "log.jsonl"

    def run(self):
        """Returns the report."""
        try:
            self._start()
            self._play()
            return self._report()
        finally:
            self.processes.stop()

    def _start(self):
        cluster = self.tree.cluster
        self.kubeconfig = control_plane.start(self.processes)
        self._create_custom_resources()
        self.account = account.Account(self.processes, sys.executable, cluster["region"])
        terms = self.account.prepare(cluster["name"], list(cluster["zones"]))
        self.tree.adapt({**CONTROLLER, "steer": self.options.is_steered}, terms)
        self.url = self.tree.push()
        self.fleetwright = Fleetwright(self.directory, self.account, self.kubeconfig)

    def _create_custom_resources(self):
        path = HERE.parents[1] / "deploy/kubernetes/crds.yaml"
        done = control_plane.kubectl(self.kubeconfig, "create", "-f", path)
        if done.returncode != 0:
            raise RuntimeError(done.stderr)

    def _play(self):
        """Delivers the workloads, and launches nodes, in the chosen order."""
        self.plan = self.fleetwright.plan(self.tree, self.options.is_steered)
        self._start_kubelets()
        order = self.options.order
        if order == "pods-first":
            self._deliver()
            self._wait_for_pods()
        self._start_program()
        if order == "nodes-first":
            self._wait_for_nodes()
        if order != "pods-first":
            self._deliver()
        self._wait_until_quiet()

    def _start_kubelets(self):
        catalog = self.fleetwright.catalog(self.tree.cluster["region"])
        for row in report.creates(self.plan):
            # The kubelet settings of a node class change what a node offers.
            after = row["change"]["after"]
            for field in ("capacity", "allocatable"):
                catalog[after["instance_type"]][field] = resources(after[field])
        path = self.directory / "catalog.json"
        path.write_text(json.dumps(catalog))
        command = [sys.executable, HERE / "kubelets.py", "--kubeconfig", self.kubeconfig]
        command += ["--catalog", path, "--log", self.log, "--ec2", self.account.url]
        command += ["--region", self.tree.cluster["region"]]
        command += ["--cluster", self.tree.cluster["name"], "--boot", self.options.boot]
        command += ["--ready-within", self.options.ready_within, "--seed", self.options.seed]
        self.processes.start("kubelets", command)

    def _start_program(self):
        self._note("controller-started")
        if self.options.apply:
            self.program = self.fleetwright.start_apply(self.processes, self.tree)
        else:
            self.program = self.fleetwright.start_controller(self.processes, self.url)

    def _deliver(self):
        self._note("delivery-started")
        self.tree.deliver(self.kubeconfig, self.directory)

    def _note(self, kind):
        with open(self.log, "a") as file:
            file.write(json.dumps({"t": round(time.time(), 3), "kind": kind}) + "\n")

    def _wait_for_pods(self):
        """Waits until the controllers have created the pods of all workloads."""
        expected = self.plan["capacity"]["pods"]["total"]
        deadline = time.time() + DELIVERY_TIMEOUT
        while report.History(self.log).pods_created() < expected and time.time() < deadline:
            time.sleep(POLL)

    def _wait_for_nodes(self):
        expected = len(report.creates(self.plan))
        deadline = time.time() + self.options.limit
        while report.History(self.log).nodes_ready() < expected and time.time() < deadline:
            time.sleep(POLL)

    def _wait_until_quiet(self):
        deadline = time.time() + self.options.limit
        while time.time() < deadline:
            time.sleep(POLL)
            history = report.History(self.log)
            is_finished = (
                history.nodes_ready() >= len(report.creates(self.plan))
                and not history.closed_nodes()
                and not report.planned_pending(self.plan, history)
            )
            quiet = QUIET if is_finished else QUIET_UNFINISHED
            if not history.closed_nodes() and time.time() - history.last_change() > quiet:
                return

    def _report(self):
        for name, kind in (("nodes", "nodes"), ("pods", "pods"), ("events", "events")):
            found = control_plane.kubectl(self.kubeconfig, "get", kind, "-A", "-o", "json")
            (self.directory / f"{name}.json").write_text(found.stdout)
        row = report.summary(self.plan, report.History(self.log))
        row.update(
            tree=self.tree.name,
            mode=self.options.mode,
            order=self.options.order,
            seed=self.options.seed,
            exit_code=self.program.poll(),
            controller=report.log_levels(self.directory / "controller.log"),
        )
        if error := report.failure(row):
            row["error"] = error
        (self.directory / "report.json").write_text(json.dumps(row, indent=1))
        return row

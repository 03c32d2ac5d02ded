#!/usr/bin/env python3
"""Simulates the kubelets of a cluster. Writes each event of nodes and pods to a log, as JSON lines.

An instance of the account becomes a node: it registers as its user data tells, and is Ready some
time after its launch. A pod runs some time after it is bound to a Ready node, and ends some time
after its deletion. The control plane creates, schedules and deletes the pods.
"""

import argparse
import base64
import collections
import datetime
import heapq
import itertools
import json
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import boto3

from api import Api

NOT_READY = "node.kubernetes.io/not-ready"
OPENING_TAINT = "fleetwright.dev/opening"
TAG_PREFIX = "fleetwright.dev/"
# Seconds between the registration of a node and its first Ready condition.
REGISTRATION = 5
INSTANCE_POLL = 1
WRITERS = 6
TRIES = 10


class Log:
    """The log of a run."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1)

    def write(self, kind, **fields):
        row = {"t": round(time.time(), 3), "kind": kind, **fields}
        self.file.write(json.dumps(row) + "\n")


class Timer:
    """Runs calls at their times, in a few threads."""

    def __init__(self, log):
        self.log, self.due, self.wake = log, [], threading.Condition()
        self.count, self.pool = itertools.count(), ThreadPoolExecutor(WRITERS)

    def at(self, when, call, *arguments):
        with self.wake:
            heapq.heappush(self.due, (when, next(self.count), call, arguments))
            self.wake.notify()

    def after(self, seconds, call, *arguments):
        self.at(time.time() + seconds, call, *arguments)

    def run(self):
        while True:
            with self.wake:
                while not self.due or self.due[0][0] > time.time():
                    self.wake.wait(self.due[0][0] - time.time() if self.due else None)
                _, _, call, arguments = heapq.heappop(self.due)
            self.pool.submit(self.attempt, call, *arguments)

    def attempt(self, call, *arguments):
        """Calls, and logs an exception: a simulated kubelet goes on."""
        try:
            call(*arguments)
        except Exception as error:  # noqa: BLE001
            self.log.write("error", call=call.__name__, error=repr(error))


class Kubelets:
    """The kubelets of all nodes."""

    def __init__(self, settings):
        self.settings, self.api, self.log = settings, Api(settings.kubeconfig), Log(settings.log)
        self.timer, self.lock = Timer(self.log), threading.Lock()
        self.catalog = json.load(open(settings.catalog))
        self.ready_nodes, self.waiting_pods = set(), collections.defaultdict(list)
        self.node_states, self.pod_states, self.instances = {}, {}, {}

    def run(self):
        for loop in (self.timer.run, self.watch_nodes, self.watch_pods, self.poll_instances):
            threading.Thread(target=self.forever, args=(loop,), daemon=True).start()
        self.log.write("start", **vars(self.settings))
        threading.Event().wait()

    def forever(self, loop):
        while True:
            self.timer.attempt(loop)
            time.sleep(1)

    # Instances.

    def poll_instances(self):
        """Makes a node of each new instance, and deletes the nodes of terminated ones."""
        ec2 = boto3.client(
            "ec2",
            endpoint_url=self.settings.ec2,
            region_name=self.settings.region,
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        filters = [
            {"Name": f"tag:{TAG_PREFIX}cluster", "Values": [self.settings.cluster]},
            {"Name": "instance-state-name", "Values": ["pending", "running"]},
        ]
        while True:
            pages = ec2.get_paginator("describe_instances").paginate(Filters=filters)
            reservations = (found for page in pages for found in page["Reservations"])
            active = {i["InstanceId"]: i for found in reservations for i in found["Instances"]}
            for instance in active.values():
                if instance["InstanceId"] not in self.instances:
                    self.on_launched(ec2, instance)
            for identifier in set(self.instances) - set(active):
                self.on_terminated(identifier)
            time.sleep(INSTANCE_POLL)

    def on_launched(self, ec2, instance):
        identifier, name = instance["InstanceId"], instance["PrivateDnsName"]
        self.instances[identifier] = name
        tags = {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
        address = f"{tags.get(TAG_PREFIX + 'pool')}/{tags.get(TAG_PREFIX + 'key')}"
        capacity_type = instance.get("InstanceLifecycle", "on-demand")
        zone, kind = instance["Placement"]["AvailabilityZone"], instance["InstanceType"]
        launched = instance["LaunchTime"].timestamp()
        spread = random.Random(f"{self.settings.seed}/{address}").random()
        ready = launched + self.settings.boot + spread * self.settings.ready_within
        self.log.write(
            "instance",
            state="launched",
            id=identifier,
            name=name,
            address=address,
            type=kind,
            zone=zone,
            capacity_type=capacity_type,
            hourly=self.catalog[kind]["hourly"].get(f"{zone}/{capacity_type}"),
        )
        attribute = ec2.describe_instance_attribute(InstanceId=identifier, Attribute="userData")
        user_data, arch = attribute["UserData"]["Value"], self.catalog[kind]["arch"]
        node = node_object(instance, user_data, arch, self.settings.region)
        self.timer.at(max(launched, ready - REGISTRATION), self.register, node, kind, identifier)
        self.timer.at(ready, self.set_ready, name)

    def on_terminated(self, identifier):
        name = self.instances[identifier]
        if name is None:
            return
        self.log.write("instance", state="terminated", id=identifier, name=name)
        self.timer.after(REGISTRATION, self.api.call, "DELETE", f"/api/v1/nodes/{name}")
        self.instances[identifier] = None

    def register(self, node, kind, identifier):
        """Creates the node, not Ready yet. A kubelet sends the status in the same call."""
        if self.instances.get(identifier) is None:
            return
        amounts, stamp = self.catalog[kind], now()
        condition = {"type": "Ready", "status": "False", "reason": "KubeletNotReady"}
        condition.update(lastHeartbeatTime=stamp, lastTransitionTime=stamp)
        node["status"] = {
            "capacity": amounts["capacity"],
            "allocatable": amounts["allocatable"],
            "conditions": [condition],
        }
        code, answer = self.api.call("POST", "/api/v1/nodes", node)
        if code not in (201, 409):
            self.log.write("error", call="register", error=answer)

    def set_ready(self, name):
        """Removes the taint that the API server gives to new nodes, and reports Ready."""
        path = f"/api/v1/nodes/{name}"
        for _ in range(TRIES):
            code, node = self.api.call("GET", path)
            if code != 200:
                time.sleep(0.5)
                continue
            taints = [t for t in node["spec"].get("taints", []) if t["key"] != NOT_READY]
            version = {"resourceVersion": node["metadata"]["resourceVersion"]}
            code, _ = self.api.merge(path, {"metadata": version, "spec": {"taints": taints}})
            if code == 200:
                break
            time.sleep(0.2)
        stamp = now()
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        condition.update(lastHeartbeatTime=stamp, lastTransitionTime=stamp)
        self.api.merge(f"{path}/status", {"status": {"conditions": [condition]}})

    # Nodes and pods.

    def watch_nodes(self):
        for event, node in self.api.watch("/api/v1/nodes"):
            name = node["metadata"]["name"]
            state = node_state(event, node)
            if state == self.node_states.get(name):
                continue
            self.node_states[name] = state
            self.log.write("node", state=state, name=name)
            if state in ("closed", "ready"):
                with self.lock:
                    self.ready_nodes.add(name)
                    for path in self.waiting_pods.pop(name, ()):
                        self.timer.after(self.settings.start, self.start_pod, path)

    def watch_pods(self):
        for event, pod in self.api.watch("/api/v1/pods"):
            meta, uid = pod["metadata"], pod["metadata"]["uid"]
            state = pod_state(event, pod)
            if state == self.pod_states.get(uid):
                continue
            self.pod_states[uid] = state
            path = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            self.log.write("pod", uid=uid, workload=workload(pod), **state)
            self.on_pod(path, uid, state)

    def on_pod(self, path, uid, state):
        node = state["node"]
        if state["state"] == "bound":
            with self.lock:
                if node in self.ready_nodes:
                    self.timer.after(self.settings.start, self.start_pod, path)
                else:
                    self.waiting_pods[node].append(path)
        elif state["state"] == "terminating" and node:
            self.timer.after(self.settings.start, self.end_pod, path, uid)

    def start_pod(self, path):
        stamp = now()
        kinds = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        conditions = [{"type": k, "status": "True", "lastTransitionTime": stamp} for k in kinds]
        status = {"phase": "Running", "startTime": stamp, "conditions": conditions}
        self.api.merge(f"{path}/status", {"status": status})

    def end_pod(self, path, uid):
        """Ends the phase before the deletion. Some Jobs count a deleted pod only once it failed."""
        stamp = now()
        kinds = ("ContainersReady", "Ready")
        conditions = [{"type": k, "status": "False", "lastTransitionTime": stamp} for k in kinds]
        status = {"phase": "Failed", "conditions": conditions}
        self.api.merge_lists(f"{path}/status", {"metadata": {"uid": uid}, "status": status})
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
        self.api.call("DELETE", path, options)


def node_object(instance, user_data, arch, region):
    """Returns the node that a kubelet with this user data registers."""
    lines = base64.b64decode(user_data).decode().splitlines()
    config = next(line for line in lines if line.startswith('{"apiVersion":"node.eks.aws'))
    flags = json.loads(config)["spec"]["kubelet"]["flags"]
    flags = dict(flag.removeprefix("--").split("=", 1) for flag in flags)
    labels = dict(label.split("=", 1) for label in split(flags.get("node-labels")))
    zone, name = instance["Placement"]["AvailabilityZone"], instance["PrivateDnsName"]
    labels.update(
        {
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": arch,
            "node.kubernetes.io/instance-type": instance["InstanceType"],
            "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": region,
        }
    )
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "providerID": f"aws:///{zone}/{instance['InstanceId']}",
            "taints": [taint(text) for text in split(flags.get("register-with-taints"))],
        },
    }


def split(text):
    return [part for part in (text or "").split(",") if part]


def taint(text):
    """Reads KEY=VALUE:EFFECT or KEY:EFFECT, as the kubelet does."""
    key, effect = text.rsplit(":", 1)
    key, _, value = key.partition("=")
    return {"key": key, "value": value, "effect": effect}


def node_state(event, node):
    """Returns registered, closed (Ready, with the opening taint), ready, leaving or gone."""
    if event == "DELETED":
        return "gone"
    spec = node["spec"]
    if node["metadata"].get("deletionTimestamp") or spec.get("unschedulable"):
        return "leaving"
    conditions = node.get("status", {}).get("conditions", [])
    if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
        return "registered"
    taints = {t["key"] for t in spec.get("taints", [])}
    return "closed" if OPENING_TAINT in taints else "ready"


def pod_state(event, pod):
    """Returns the state of a pod, its node and its nomination, with who nominated it."""
    meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
    if event == "DELETED":
        state = "gone"
    elif meta.get("deletionTimestamp"):
        state = "terminating"
    elif status["phase"] != "Pending":
        state = "running"
    else:
        state = "bound" if spec.get("nodeName") else "pending"
    conditions = {c["type"]: c for c in status.get("conditions", [])}
    nominated = status.get("nominatedNodeName")
    return {
        "state": state,
        "node": spec.get("nodeName"),
        "nominated": nominated,
        "by": nominator(pod) if nominated else None,
        "evicted": conditions.get("DisruptionTarget", {}).get("reason"),
    }


def nominator(pod):
    """Returns the field manager that set the nomination."""
    for entry in pod["metadata"].get("managedFields", []):
        if "f:nominatedNodeName" in entry.get("fieldsV1", {}).get("f:status", {}):
            return entry["manager"]
    return None


def workload(pod):
    """Returns the kind, namespace and name of the owner. A Deployment stands for its ReplicaSet."""
    meta = pod["metadata"]
    owners = meta.get("ownerReferences") or [{"kind": "Pod", "name": meta["name"]}]
    kind, name = owners[0]["kind"], owners[0]["name"]
    template = meta.get("labels", {}).get("pod-template-hash")
    if kind == "ReplicaSet" and template:
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    return f"{kind}/{meta['namespace']}/{name}"


def now():
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kubeconfig", "catalog", "log", "ec2", "region", "cluster"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--boot", type=float, required=True)
    parser.add_argument("--ready-within", type=float, required=True)
    parser.add_argument("--start", type=float, default=2)
    parser.add_argument("--seed", default="1")
    return parser.parse_args()


if __name__ == "__main__":
    Kubelets(arguments()).run()

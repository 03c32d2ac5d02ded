#!/usr/bin/env python3
"""Figures of a run, computed from its plan and from the log of its kubelets.

`report.py DIRECTORY...` prints the table of finished runs again.
"""

import collections
import json
import sys
from decimal import Decimal
from pathlib import Path

SCHEDULER = "kube-scheduler"
TIMELINE_POINTS = 24
MESSAGES_MAX = 20
# Longest time in seconds for which a Ready node may stay closed while pods wait for it. The
# controller opens it within 20 seconds. Observations and nominations take the rest.
CLOSED_WITH_PODS_MAX = 25
COLUMNS = (
    ("tree", "tree"),
    ("mode", "mode"),
    ("seed", "seed"),
    ("pods", "pods"),
    ("bound", "bound"),
    ("planned_pending", "planned pending"),
    ("daemons_pending", "daemons pending"),
    ("honored_share", "honored"),
    ("last_bound_after_ready", "s to last bound"),
    ("longest_closed", "s closed"),
    ("longest_closed_with_pods", "s closed with pods"),
    ("nodes", "nodes"),
    ("launched_beyond_plan", "beyond plan"),
    ("closed", "left closed"),
    ("empty", "empty"),
    ("hourly", "$/h"),
    ("plan_hourly", "plan $/h"),
    ("packed_hourly", "packed $/h"),
    ("bound_hourly", "bound $/h"),
    ("over_packed", "over packed"),
    ("over_bound", "over bound"),
)


class History:
    """The events of a run, and the last state of each instance, node and pod."""

    def __init__(self, path):
        self.rows = []
        for line in Path(path).read_text().splitlines() if Path(path).exists() else ():
            try:
                self.rows.append(json.loads(line))
            except json.JSONDecodeError:
                break  # The last line is being written.
        self.rows.sort(key=lambda row: row["t"])
        self.instances, self.nodes, self.pods = {}, {}, {}
        for row in self.rows:
            if row["kind"] == "instance":
                self.instances.setdefault(row["name"], {}).update(row)
            elif row["kind"] == "node":
                self.nodes[row["name"]] = row["state"]
            elif row["kind"] == "pod":
                self.pods[row["uid"]] = row

    def active_instances(self):
        return {n: i for n, i in self.instances.items() if i["state"] == "launched"}

    def active_pods(self):
        return [pod for pod in self.pods.values() if pod["state"] in ("pending", "bound", "running")]

    def pods_created(self):
        return sum(not is_daemon(pod) for pod in self.active_pods())

    def nodes_ready(self):
        return sum(state in ("closed", "ready") for state in self.nodes.values())

    def closed_nodes(self):
        return [name for name, state in self.nodes.items() if state == "closed"]

    def last_change(self):
        changes = [row["t"] for row in self.rows if row["kind"] != "error"]
        return changes[-1] if changes else 0

    def times(self, kind, state):
        """Returns the time of each event of a kind that led to a state, by name or UID."""
        rows = (r for r in self.rows if r["kind"] == kind and r["state"] == state)
        return {row.get("uid") or row["name"]: row["t"] for row in rows}


def creates(plan):
    """Returns the rows of a plan that launch an instance."""
    rows = plan["resource_changes"]
    return [row for row in rows if row["change"]["actions"] == ["create"]]


def is_daemon(pod):
    return pod["workload"].startswith("DaemonSet/")


def workload(placement):
    """Returns the name of the workload of a placement, as the log has it."""
    owner = placement["workload"]
    return f"{owner['kind']}/{owner['namespace']}/{owner['name']}"


def planned_pods(plan):
    """Returns the number of pods that the plan places, by workload."""
    planned = collections.Counter()
    for row in plan["capacity"]["placements"]:
        planned[workload(row)] += row["pods"]
    return planned


def planned_workloads(plan, history):
    """Returns the workloads that the plan places on each node that it launches, by its name."""
    addresses = {row["address"]: f"{row['name']}/{row['index']}" for row in creates(plan)}
    placed = {address: set() for address in addresses.values()}
    for row in plan["capacity"]["placements"]:
        if row["address"] in addresses:
            placed[addresses[row["address"]]].add(workload(row))
    instances = history.instances.items()
    return {name: placed[i["address"]] for name, i in instances if i["address"] in placed}


def closed_times(plan, history):
    """Returns the longest time for which a Ready planned node was closed, and with pending pods.

    A time ends when the node opens or is deleted, or with the log. Only pods of the workloads that the plan
    places on the node count.
    """
    workloads = planned_workloads(plan, history)
    # Pending pods by workload, and since when there is one.
    pending, since = collections.defaultdict(set), {}
    closed, times, times_with_pods = {}, [0], [0]

    def end(name, now):
        began = closed.pop(name)
        times.append(now - began)
        starts = [since[key] for key in workloads[name] if pending[key]]
        times_with_pods.append(now - max(began, min(starts, default=now)))

    for row in history.rows:
        if row["kind"] == "pod":
            pods = pending[row["workload"]]
            if row["state"] == "pending":
                if not pods:
                    since[row["workload"]] = row["t"]
                pods.add(row["uid"])
            else:
                pods.discard(row["uid"])
        elif row["kind"] == "node" and row["state"] == "closed" and row["name"] in workloads:
            closed.setdefault(row["name"], row["t"])
        elif row["kind"] == "node" and row["name"] in closed:
            end(row["name"], row["t"])
    for name in list(closed):
        end(name, history.rows[-1]["t"])
    return {
        "longest_closed": round(max(times), 1),
        "longest_closed_with_pods": round(max(times_with_pods), 1),
    }


def failure(row):
    """Returns why the figures of a run are a failure, or nothing."""
    seconds = row["longest_closed_with_pods"]
    if seconds > CLOSED_WITH_PODS_MAX:
        return f"a Ready node was closed for {seconds} s while its pods were pending"
    return None


def planned_pending(plan, history):
    """Returns the number of pods that the plan places and that are not bound, by workload."""
    active = collections.Counter(pod["workload"] for pod in history.active_pods() if pod["node"])
    missing = {k: count - active[k] for k, count in planned_pods(plan).items()}
    return {workload: count for workload, count in missing.items() if count > 0}


def nominations(history):
    """Returns what became of the nominations by others than kube-scheduler."""
    nominated, result = {}, collections.Counter()
    for row in history.rows:
        if row["kind"] != "pod":
            continue
        uid = row["uid"]
        if row["state"] == "pending" and row["nominated"] and row["by"] != SCHEDULER:
            nominated[uid] = row["nominated"]
        elif row["state"] == "pending" and uid in nominated and not row["nominated"]:
            result["cleared"] += 1
        elif row["state"] == "pending" and row["nominated"] and row["by"] == SCHEDULER:
            result["by_preemption"] += 1
        if row["node"] and uid in nominated:
            result["honored" if nominated.pop(uid) == row["node"] else "elsewhere"] += 1
    result["unbound"] = len(nominated)
    result["made"] = result["honored"] + result["elsewhere"] + result["unbound"]
    return dict(result)


def timeline(history):
    """Returns (seconds since the delivery, pending pods) at each change, thinned out."""
    pending, points = set(), []
    start = next((row["t"] for row in history.rows if row["kind"] == "delivery-started"), 0)
    for row in history.rows:
        if row["kind"] != "pod" or row["workload"].startswith("DaemonSet/"):
            continue
        (pending.add if row["state"] == "pending" else pending.discard)(row["uid"])
        second = int(row["t"] - start)
        if points and points[-1][0] == second:
            points.pop()
        if not points or points[-1][1] != len(pending):
            points.append((second, len(pending)))
    step = max(1, len(points) // TIMELINE_POINTS)
    return points[:-1:step] + points[-1:]


def summary(plan, history):
    """Returns the figures of a run."""
    capacity, cost = plan["capacity"], plan["capacity"]["cost"]
    instances = history.active_instances()
    pods = [pod for pod in history.active_pods() if not is_daemon(pod)]
    daemons = [pod for pod in history.active_pods() if is_daemon(pod)]
    used = {pod["node"] for pod in pods}
    hourly = sum(Decimal(i["hourly"] or 0) for i in instances.values())
    packed = Decimal(capacity["placement"].get("packed_hourly") or cost["hourly_after"])
    bound = Decimal(cost["lower_bound_hourly"])
    counts, pending = nominations(history), planned_pending(plan, history)
    return {
        "pods": len(pods),
        "bound": sum(bool(pod["node"]) for pod in pods),
        "plan_places": capacity["pods"]["placed"],
        "plan_refuses": capacity["pods"]["unschedulable"],
        "planned_pending": sum(pending.values()),
        "planned_pending_by_workload": pending,
        "daemons": len(daemons),
        "daemons_pending": sum(not pod["node"] for pod in daemons),
        "evicted": collections.Counter(
            row["evicted"] for row in history.rows if row["kind"] == "pod" and row["evicted"]
        ),
        "nominations": counts,
        "honored_share": share(counts.get("honored", 0), counts["made"]),
        "nodes": len(instances),
        "nodes_in_plan": len(creates(plan)),
        "launched_beyond_plan": len(history.instances) - len(creates(plan)),
        "terminated": len(history.instances) - len(instances),
        "closed": len(history.closed_nodes()),
        "empty": len(set(instances) - used),
        "hourly": str(hourly),
        "plan_hourly": cost["hourly_after"],
        "packed_hourly": str(packed),
        "bound_hourly": str(bound),
        "over_packed": over(hourly, packed),
        "over_bound": over(hourly, bound),
        **closed_times(plan, history),
        "pending_over_time": timeline(history),
        "rig_errors": sum(row["kind"] == "error" for row in history.rows),
        **durations(plan, history),
    }


def durations(plan, history):
    """Returns seconds between the milestones of a run. They count the nodes of the first plan."""
    addresses = {f"{row['name']}/{row['index']}" for row in creates(plan)}
    planned = {n for n, found in history.instances.items() if found["address"] in addresses}
    opened = only(history.times("node", "ready"), planned)
    closed = only(history.times("node", "closed"), planned)
    ready = {**opened, **closed}
    bound = [
        row["t"]
        for row in history.rows
        if row["kind"] == "pod" and row["state"] == "bound" and row["node"] in planned
        if not is_daemon(row)
    ]
    started = [row["t"] for row in history.rows if row["kind"] == "controller-started"]
    if not opened or not bound or not started:
        return {"last_bound_after_ready": None}
    return {
        "first_ready_after_start": round(min(ready.values()) - started[0], 1),
        "last_ready_after_start": round(max(ready.values()) - started[0], 1),
        "last_bound_after_ready": round(max(bound) - max(ready.values()), 1),
        "last_bound_after_opened": round(max(bound) - max(opened.values()), 1),
        "opened_per_second": sorted(collections.Counter(map(int, opened.values())).items()),
    }


def only(times, names):
    return {name: at for name, at in times.items() if name in names}


def log_levels(path):
    """Returns the number of lines of a JSON log by level, and each warning and error once."""
    counts, messages = collections.Counter(), collections.Counter()
    for text in path.read_text().splitlines():
        if not text.startswith("{"):
            continue
        row = json.loads(text)
        level = row.get("level") or row.get("@level", "")
        counts[level] += 1
        if level in ("warn", "error"):
            what = row.get("message") or row.get("@message")
            messages[f"{level}: {what} {row.get('error', '')}".strip()] += 1
    return {"lines": dict(counts), "messages": dict(messages.most_common(MESSAGES_MAX))}


def share(part, whole):
    return f"{100 * part / whole:.1f} %" if whole else "-"


def over(hourly, base):
    return f"{100 * (hourly / base - 1):+.1f} %" if base else "-"


def header():
    names = [name for _, name in COLUMNS]
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}"


def line(row):
    return f"| {' | '.join(shown(row.get(key)) for key, _ in COLUMNS)} |"


def shown(value):
    return "-" if value is None else str(value)


if __name__ == "__main__":
    print(header())
    for directory in sys.argv[1:]:
        print(line(json.loads((Path(directory) / "report.json").read_text())))

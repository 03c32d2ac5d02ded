"""Plays the controller over trees of manifests, on a real Kubernetes control plane."""

import argparse
import json
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path

import report
from scenario import Scenario

# EX_UNAVAILABLE of sysexits.h.
EXIT_UNAVAILABLE = 69
ASSETS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def arguments():
    parser = argparse.ArgumentParser(prog="run", description=__doc__)
    parser.add_argument("trees", nargs="+", metavar="TREE", help="directory with plain manifests")
    parser.add_argument("--unsteered", action="store_true", help="nominate no pods")
    parser.add_argument(
        "--apply",
        action="store_true",
        help="launch with one unsteered `fleetwright apply` instead of the controller",
    )
    parser.add_argument(
        "--order",
        choices=("pods-first", "nodes-first", "together"),
        default="pods-first",
        help="what is there first",
    )
    parser.add_argument("--boot", type=float, default=20, help="seconds from launch to Ready")
    parser.add_argument(
        "--ready-within", type=float, default=0, help="further seconds, drawn for each node"
    )
    parser.add_argument("--limit", type=float, default=900, help="seconds until a run ends")
    parser.add_argument("--seed", default="1", help="seed of the drawn delays")
    parser.add_argument("--out", type=Path, help="directory for logs and reports")
    options = parser.parse_args()
    options.mode = "apply" if options.apply else "unsteered" if options.unsteered else "steered"
    options.is_steered = options.mode == "steered"
    return options


def check_environment():
    """Ends with a message unless all programs are there."""
    if "KUBEBUILDER_ASSETS" not in os.environ:
        unavailable("KUBEBUILDER_ASSETS is not set")
    assets = Path(os.environ["KUBEBUILDER_ASSETS"])
    missing = [name for name in ASSETS if not (assets / name).exists()]
    if missing:
        unavailable(f"KUBEBUILDER_ASSETS has no {missing[0]}")
    if not Path(os.environ.get("FLEETWRIGHT", "")).is_file():
        sys.exit("FLEETWRIGHT names no program with cluster support: build it with default features")


def unavailable(why):
    print(f"not run: {why}", file=sys.stderr)
    sys.exit(EXIT_UNAVAILABLE)


def main():
    options = arguments()
    check_environment()
    # The finally block of a run stops its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    out = options.out or Path(tempfile.mkdtemp(prefix="control-plane-"))
    out = out.resolve()
    print(f"logs and reports: {out}", file=sys.stderr)
    is_failed = False
    print(report.header(), flush=True)
    for tree in options.trees:
        directory = unused(out / Path(tree).name)
        try:
            row = Scenario(tree, directory, options).run()
        except Exception as error:  # noqa: BLE001
            row = {"tree": Path(tree).name, "error": f"{type(error).__name__}: {error}"}
            traceback.print_exc()
        if "error" in row:
            is_failed = True
            print(f"{tree}: {row['error']}", file=sys.stderr)
        print(report.line(row), flush=True)
        with open(out / "reports.jsonl", "a") as file:
            file.write(json.dumps(row) + "\n")
    return 1 if is_failed else 0


def unused(directory):
    """Returns the directory, with a number if it exists."""
    candidates = (directory.with_name(f"{directory.name}-{n}") for n in range(2, 1000))
    return directory if not directory.exists() else next(c for c in candidates if not c.exists())


if __name__ == "__main__":
    sys.exit(main())

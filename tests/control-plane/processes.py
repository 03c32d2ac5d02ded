"""Child processes of a run. All of them end with the run."""

import fcntl
import os
import signal
import socket
import subprocess
import tempfile
from pathlib import Path

STOP_TIMEOUT = 10
# Below the ports that systems draw for outgoing connections.
PORTS = range(20000, 30000)


class Processes:
    """Started processes, each with a log file. They stop in reverse order."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.running, self.port_locks = [], []

    def start(self, name, command, **options):
        """Starts a program whose output goes to NAME.log."""
        log = open(self.directory / f"{name}.log", "ab")
        command = [str(word) for word in command]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options
        )
        self.running.append(process)
        return process

    def stop(self):
        """Stops all processes, and waits for each."""
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.running.clear()
        for lock in self.port_locks:
            lock.close()
        self.port_locks.clear()

    def free_ports(self, count):
        """Returns unused ports of the loopback interface. No parallel run gets them."""
        ports = []
        for port in PORTS:
            if len(ports) == count:
                return ports
            lock = _lock_port(port)
            if lock:
                self.port_locks.append(lock)
                ports.append(port)
        raise RuntimeError(f"fewer than {count} ports of {PORTS.start} to {PORTS.stop} are free")


def _lock_port(port):
    """Returns the locked file of a port, or None if the port is in use."""
    try:
        lock = open(Path(tempfile.gettempdir()) / f"fleetwright-port-{port}.lock", "a")
    except OSError:
        return None  # Another user has created the file.
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        lock.close()
        return None
    return lock


def binary(name):
    """Returns the path of a program in KUBEBUILDER_ASSETS, else its name for the search path."""
    path = Path(os.environ["KUBEBUILDER_ASSETS"]) / name
    return path if path.exists() else name

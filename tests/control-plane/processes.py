"""Child processes of a run. All of them end with the run."""

import os
import signal
import socket
import subprocess
from pathlib import Path

STOP_TIMEOUT = 10


class Processes:
    """Started processes, each with a log file. They stop in reverse order."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.running = []

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


def free_ports(count):
    """Returns unused ports of the loopback interface."""
    sockets = [socket.socket() for _ in range(count)]
    for opened in sockets:
        opened.bind(("127.0.0.1", 0))
    ports = [opened.getsockname()[1] for opened in sockets]
    for opened in sockets:
        opened.close()
    return ports


def binary(name):
    """Returns the path of a program in KUBEBUILDER_ASSETS, else its name for the search path."""
    path = Path(os.environ["KUBEBUILDER_ASSETS"]) / name
    return path if path.exists() else name

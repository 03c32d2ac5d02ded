"""A small client of the Kubernetes API: JSON over kept connections, one for each thread, and watches."""

import http.client
import json
import re
import ssl
import threading
import time
from pathlib import Path

ATTEMPTS = 4
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"


class Api:
    """The API server that a kubeconfig with a token names."""

    def __init__(self, kubeconfig):
        text = Path(kubeconfig).read_text()
        self.host = re.search(r'https://([^"\s}]+)', text).group(1)
        self.headers = {"Authorization": "Bearer " + re.search(r"token: ([^\s}]+)", text).group(1)}
        # The certificate is self-signed, and the server listens on the loopback interface only.
        self.tls = ssl._create_unverified_context()
        self.per_thread = threading.local()

    def call(self, method, path, body=None, content_type="application/json"):
        """Returns the status code and the object. Repeats the call if the connection was lost."""
        text = None if body is None else json.dumps(body)
        for attempt in range(ATTEMPTS):
            connection = self._connection()
            try:
                headers = {**self.headers, "Content-Type": content_type}
                connection.request(method, path, text, headers)
                response = connection.getresponse()
                data = response.read()
                return response.status, json.loads(data) if data[:1] == b"{" else data
            except (OSError, http.client.HTTPException):
                connection.close()
                self.per_thread.connection = None
                if attempt == ATTEMPTS - 1:
                    raise
                time.sleep(0.5)

    def get(self, path):
        """Returns an object or a list."""
        code, found = self.call("GET", path)
        if code != 200:
            raise RuntimeError(f"GET {path}: {code} {found}")
        return found

    def merge(self, path, body):
        """Sends a merge patch. Returns the status code and the object."""
        return self.call("PATCH", path, body, MERGE_PATCH)

    def merge_lists(self, path, body):
        """Does the same with a strategic merge patch: it retains list items with other keys."""
        return self.call("PATCH", path, body, STRATEGIC_MERGE_PATCH)

    def watch(self, path):
        """Yields (event type, object): existing objects as ADDED, then each change."""
        found = self.get(path)
        for item in found["items"]:
            yield "ADDED", item
        version = found["metadata"]["resourceVersion"]
        while True:
            connection = self._connect(timeout=None)
            query = f"{path}?watch=1&allowWatchBookmarks=true&resourceVersion={version}"
            connection.request("GET", query, None, self.headers)
            for line in iter(connection.getresponse().readline, b""):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise RuntimeError(event)
                version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    yield event["type"], event["object"]
            connection.close()

    def _connection(self):
        existing = getattr(self.per_thread, "connection", None)
        self.per_thread.connection = existing or self._connect(timeout=60)
        return self.per_thread.connection

    def _connect(self, timeout):
        return http.client.HTTPSConnection(self.host, context=self.tls, timeout=timeout)

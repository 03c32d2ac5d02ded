"""Serves the bare repositories of a directory over HTTP, with git's own `git http-backend`.

Usage: git_server.py DIRECTORY. The first line on stdout is the port on 127.0.0.1.
"""

import http.server
import os
import subprocess
import sys
from urllib.parse import urlsplit


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        environment = os.environ | {
            "GIT_PROJECT_ROOT": os.path.abspath(sys.argv[1]),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        ran = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True)
        head, _, content = ran.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.send_response(int(fields.pop("Status", "200").split()[0]))
        for name, value in fields.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()

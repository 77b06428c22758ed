"""A real extender that has no opinion: takes our extender's flags, keeps every node, scores none."""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Plain(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.reply(b"ok")

    def do_POST(self):
        arguments = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"NodeNames": arguments["NodeNames"]} if self.path == "/filter" else []
        self.reply(json.dumps(answer).encode())

    def reply(self, body):
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for flag in ("--kubeconfig", "--bind", "--port-file", "--configmap", "--metrics-bind"):
        parser.add_argument(flag, required=True)
    flags = parser.parse_args()
    server = HTTPServer(("127.0.0.1", 0), Plain)
    Path(flags.port_file).write_text(str(server.server_port))
    host, port = flags.metrics_bind.rsplit(":", 1)
    probes = HTTPServer((host, int(port)), Plain)
    threading.Thread(target=probes.serve_forever, daemon=True).start()
    server.serve_forever()

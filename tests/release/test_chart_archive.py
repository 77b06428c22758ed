"""The packed chart as Helm takes it: linted, rendered like the folder, and pushed to a registry and pulled from it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hack.controlplane.tools import cache
from hack.release import chart

pytestmark = pytest.mark.real

VERSION = "--kube-version=1.35.0"


class Registry(BaseHTTPRequestHandler):
    """The part of an OCI registry that a push and a pull need. Source: distribution-spec 1.1."""

    blobs: dict[str, bytes]
    kinds: dict[str, str]

    def do_POST(self):
        self._answer(202, {"Location": f"{self.path}upload"})

    def do_PUT(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        for key in {digest, self.path.rpartition("/")[2].partition("?")[0]}:
            self.blobs[key], self.kinds[key] = data, self.headers["Content-Type"]
        self._answer(201, {"Location": self.path, "Docker-Content-Digest": digest})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        key = self.path.rpartition("/")[2]
        if self.path == "/v2/":
            self._answer(200, {})
        elif key not in self.blobs:
            self._answer(404, {})
        else:
            digest = f"sha256:{hashlib.sha256(self.blobs[key]).hexdigest()}"
            self._answer(200, {"Content-Type": self.kinds[key], "Docker-Content-Digest": digest}, self.blobs[key])

    def _answer(self, status, headers, body=b""):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *words):
        pass


@pytest.fixture
def registry():
    """The address of an empty registry on this machine, and what is in it."""
    handler = type("Handler", (Registry,), {"blobs": {}, "kinds": {}})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}", handler.blobs
        server.shutdown()
        thread.join()


@pytest.fixture
def helm(tmp_path):
    """Helm with a home of its own."""
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}

    def run(*arguments):
        argv = [cache.binary("helm"), *map(str, arguments)]
        done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return run


def without_keys(text):
    """Drop the keys that helm makes anew at each rendering."""
    return re.sub(r"(?m)^\s*(ca\.crt|tls\.crt|tls\.key|turnout\.dev/valid-until): .*$", "", text)


def test_helm_takes_the_archive_as_it_takes_the_folder(helm, tmp_path):
    file = chart.write(tmp_path / "out")
    assert "0 chart(s) failed" in helm("lint", "--strict", VERSION, file)
    folder = chart.ROOT / chart.CHART
    assert without_keys(helm("template", "x", file, VERSION)) == without_keys(helm("template", "x", folder, VERSION))


def test_the_archive_goes_to_a_registry_and_comes_back(helm, registry, tmp_path):
    address, blobs = registry
    file = chart.write(tmp_path / "out")
    helm("push", file, f"oci://{address}/charts", "--plain-http")
    about = chart.read_chart_yaml()
    manifest = json.loads(blobs[about["version"]])
    assert manifest["config"]["mediaType"] == "application/vnd.cncf.helm.config.v1+json"
    (layer,) = manifest["layers"]
    assert layer["digest"] == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    helm("pull", f"oci://{address}/charts/{about['name']}", "--version", about["version"], "--plain-http")
    assert (tmp_path / chart.name()).read_bytes() == file.read_bytes()

"""The result of a check is written on the worker's own pod, over a real connection."""

from __future__ import annotations

import base64
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml

from turnout.kube import labels, node_health
from turnout.launcher.coordinator_messages import Judged, NodeResult
from turnout.launcher.errors import BadSettings
from turnout.launcher.health.probe_messages import Report
from turnout.launcher.health.probes.pod_annotation import OwnPod, PodIdentity, own_pod

FAULTY = Judged(7, NodeResult.FAULTY, "w0", "bert", 4, "network_failed", "failed with w1 and with w2")
ENV = {"POD_NAMESPACE": "team", "POD_NAME": "bert-3"}


class Server:
    """An API server of one pod. answers: codes, one for each call, the last one for all that follow."""

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_PATCH(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.asked.append((self.path.partition("?")[0], json.loads(body)))
                code = outer.answers.pop(0) if len(outer.answers) > 1 else outer.answers[0]
                text = json.dumps({"kind": "Status", "code": code, "message": f"answered {code}"}).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def kubeconfig(self, file):
        url = f"http://127.0.0.1:{self.http.server_address[1]}"
        file.write_text(yaml.safe_dump({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "pod", "user": {"token": "t"}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "pod"}}],
        }))  # fmt: skip
        return str(file)


async def log_after_write(server, folder, *verdicts):
    """Write the annotation, and give what the agent logs of it."""
    events = []
    pod, config = PodIdentity("team", "bert-3", "u-1"), server.kubeconfig(folder / "config")
    own = OwnPod(pod, "gpu-7", lambda what, fields: events.append((what, fields)), config, again_s=0.01)
    for each in verdicts:
        own.write_finding(each, Report(compute_s=0.5))
    await own.close()
    return events


@pytest.mark.asyncio
async def test_a_measurement_is_compared_with_that_of_its_own_incarnation_alone(tmp_path):
    with Server(200) as server:
        entries = await log_after_write(server, tmp_path, FAULTY)
    assert [(what, fields["found"]) for what, fields in entries] == [("verdict_written", "faulty")]
    ((path, body),) = server.asked
    assert (path, body["metadata"]["uid"]) == ("/api/v1/namespaces/team/pods/bert-3", "u-1")
    report = node_health.decode_report(body["metadata"]["annotations"][labels.NODE_VERDICT])
    assert (report.kind, report.round, report.by, report.run, report.members) == (
        node_health.CheckResult.FAULTY,
        7,
        "w0",
        "bert",
        4,
    )
    assert (report.node, report.cause, report.why, report.compute_s) == ("gpu-7", FAULTY.cause, FAULTY.why, 0.5)
    assert (report.at.tzinfo is not None, report.collective_s) == (True, None)


@pytest.mark.parametrize(
    ("answers", "what", "detail", "calls"),
    [
        pytest.param([503, 429, 200], "verdict_written", "", 3, id="a server in trouble is asked again"),
        pytest.param([403], "verdict_not_written", "job-verdicts.yaml", 1, id="who lacks the right is told the step"),
        pytest.param([404], "verdict_not_written", "answered 404", 1, id="a pod that is gone"),
        pytest.param([409], "verdict_not_written", "answered 409", 1, id="another pod of the same name"),
    ],
)
@pytest.mark.asyncio
async def test_what_the_api_server_answers(answers, what, detail, calls, tmp_path):
    with Server(*answers) as server:
        ((event, fields),) = await log_after_write(server, tmp_path, FAULTY)
    assert (event, len(server.asked)) == (what, calls)
    assert detail in fields.get("detail", "")


@pytest.mark.asyncio
async def test_the_newest_word_is_the_one_that_is_written(tmp_path):
    with Server(200) as server:
        await log_after_write(server, tmp_path, FAULTY, Judged(8, NodeResult.FINE, "w0", "bert", 4))
    assert [
        node_health.decode_report(body["metadata"]["annotations"][labels.NODE_VERDICT]).round
        for _, body in server.asked
    ] == [8]


def token(claims):
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"head.{body}.signature"


BOUND = {"kubernetes.io": {"namespace": "a", "pod": {"name": "p-x7", "uid": "u"}}}


@pytest.mark.parametrize(
    ("text", "environ", "pod"),
    [
        pytest.param(
            token(BOUND), ENV, PodIdentity("a", "p-x7", "u"), id="the token knows it, whatever the name of the host"
        ),
        pytest.param(token({}), ENV, PodIdentity("team", "bert-3"), id="a token that is bound to no pod"),
        pytest.param(
            token([]), {**ENV, "POD_UID": "u-2"}, PodIdentity("team", "bert-3", "u-2"), id="claims that are none"
        ),
        pytest.param("no token", ENV, PodIdentity("team", "bert-3"), id="what is no token"),
        pytest.param(None, ENV, PodIdentity("team", "bert-3"), id="no token"),
    ],
)
def test_which_pod_this_is(text, environ, pod, tmp_path):
    if text is not None:
        (tmp_path / "token").write_text(text)
    assert own_pod(environ, tmp_path / "token") == pod


def test_who_does_not_know_its_pod_is_told_what_to_give(tmp_path):
    with pytest.raises(BadSettings, match="automountServiceAccountToken"):
        own_pod({"POD_NAME": "bert-3"}, tmp_path / "token")

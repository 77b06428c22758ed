"""`turnout logs -f`: what a worker writes, across restarts of its container and new pods, until its job ends."""

import asyncio

import msgspec
import pytest

from turnout.cli.log_runs import NoSuchContainer
from turnout.cli.verbs.follow_log import LogFollower
from turnout.controllers.kinds.registry import KINDS
from turnout.kube.errors import NotFound, Rejected, Unreachable

JOB = "/apis/kubeflow.org/v1/namespaces/ns/pytorchjobs/bert"
PODS = "/api/v1/namespaces/ns/pods"
LABELS = {"training.kubeflow.org/replica-type": "worker"}
RUNNING, OVER, WAITING = {"running": {}}, {"terminated": {"exitCode": 0}}, {"waiting": {"reason": "CrashLoopBackOff"}}
SUCCEEDED = {"conditions": [{"type": "Succeeded", "status": "True"}]}


def pod(state, name="bert-worker-3", uid="u", restarts=0, created="2026-01-01T00:00:00Z", labels=LABELS):
    meta = {"name": name, "uid": uid, "labels": labels, "creationTimestamp": created}
    container_status = {"name": "pytorch", "restartCount": restarts, "state": state}
    containers = [{"name": "proxy"}, {"name": "pytorch"}]
    return {"metadata": meta, "spec": {"containers": containers}, "status": {"containerStatuses": [container_status]}}


class Scenes:
    """An API server whose next scene begins when the follower sleeps. A scene: job, pods, log or what is raised."""

    def __init__(self, *scenes):
        self.scenes, self.requests = list(scenes), []

    async def sleep(self, seconds):
        assert seconds > 0
        self.scenes.pop(0)

    async def get(self, path, params=None):
        if path.endswith("/log"):
            body = b"".join(self.scenes[0][2])
            return b"".join(body.splitlines(keepends=True)[-int(params.get("tailLines", "99")) :])
        assert path == JOB
        if (job := self.scenes[0][0]) is None:
            raise NotFound("GET", path, 404, "gone")
        return msgspec.json.encode({"status": job})

    async def pages(self, path, params=None):
        chosen = "training.kubeflow.org/job-name=bert,training.kubeflow.org/replica-index=3"
        assert (path, params) == (PODS, {"labelSelector": chosen})
        yield msgspec.json.encode({"items": self.scenes[0][1]})

    async def stream(self, path, params):
        self.requests.append((path.removeprefix(f"{PODS}/"), params))
        for piece in self.scenes[0][2]:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def followed(*scenes, **more):
    """Return what is shown, what is told beside it, and the server after it."""
    server, shown, messages = Scenes(*scenes), [], []
    show, tell = shown.append, messages.append
    asyncio.run(LogFollower(server, server, KINDS["PyTorchJob"], JOB, PODS, 3, show, tell, **more).run())
    return b"".join(shown).decode(), messages, server


BROKEN = Unreachable("GET", JOB, 0, "the answer broke off")


@pytest.mark.parametrize(
    ("scenes", "text", "expected_messages"),
    [
        pytest.param(
            [({}, [pod(RUNNING)], [b"a", b"b"]), (SUCCEEDED, [pod(OVER)], [b"abc"])], "abc", 0, id="to its end"
        ),
        pytest.param(
            [({}, [], []), ({}, [pod(RUNNING)], [b"a"]), (SUCCEEDED, [pod(OVER)], [b"a"])], "a", 0, id="a late pod"
        ),
        pytest.param(
            [
                ({}, [pod(OVER)], [b"a"]),
                ({}, [pod(RUNNING, restarts=1)], [b"b"]),
                (SUCCEEDED, [pod(OVER, restarts=1)], [b"b"]),
            ],
            "ab",
            1,
            id="across a restart of its container",
        ),
        pytest.param(
            [
                ({}, [pod(OVER)], [b"a"]),
                ({}, [pod(RUNNING, uid="v", created="2026-01-01T00:01:00Z"), pod(OVER)], [b"b"]),
                (SUCCEEDED, [pod(OVER, uid="v")], [b"bc"]),
            ],
            "abc",
            1,
            id="across a new pod of its rank",
        ),
        pytest.param(
            [
                ({}, [pod(RUNNING)], [b"ab", BROKEN]),
                ({}, [pod(RUNNING)], [b"a", b"bcd"]),
                (SUCCEEDED, [pod(OVER)], [b"abcd"]),
            ],
            "abcd",
            1,
            id="across a connection that breaks",
        ),
        pytest.param(
            [
                ({}, [pod(RUNNING)], [b"012", b"3456789\n", BROKEN]),
                ({}, [pod(RUNNING)], [b"01", b"NEW\n", BROKEN]),
                (SUCCEEDED, [pod(OVER)], [b"01NEW\nend\n"]),
            ],
            "0123456789\n01NEW\nend\n",
            3,
            id="across a rotation of the log while the connection is broken",
        ),
        pytest.param(
            [
                ({}, [pod(RUNNING)], [b"a"]),
                ({}, [pod(WAITING, restarts=1)], [b"?"]),
                (SUCCEEDED, [pod(OVER, restarts=2)], [b"b"]),
            ],
            "ab",
            1,
            id="not while it waits to be started again",
        ),
        pytest.param([({}, [pod(RUNNING)], [b"a"]), (None, [], [])], "a", 0, id="until its job is gone"),
        pytest.param(
            [(SUCCEEDED, [pod(RUNNING)], [b"so far"])], "so far", 0, id="not on and on after its job has ended"
        ),
        pytest.param([(SUCCEEDED, [], [])], "", 0, id="nothing of a job whose pods are cleaned up"),
        pytest.param(
            [({}, [pod(RUNNING)], [NotFound("GET", PODS, 404, "gone")]), (SUCCEEDED, [], [])],
            "",
            0,
            id="not a pod that goes",
        ),
        pytest.param(
            [({}, [pod(OVER)], [Rejected("GET", PODS, 400, "waiting to start")]), (SUCCEEDED, [], [])],
            "",
            0,
            id="not a container that is not there yet",
        ),
        pytest.param(
            [(SUCCEEDED, [pod(OVER)], [b"all of it"])], "all of it", 0, id="the whole log of a job that has ended"
        ),
    ],
)
def test_it_shows(scenes, text, expected_messages):
    shown, messages, _ = followed(*scenes)
    assert (shown, len(messages)) == (text, expected_messages)


def test_it_reads_the_training_container_of_a_worker_and_nobody_elses():
    master = pod(
        RUNNING, "bert-master-3", created="2027-01-01T00:00:00Z", labels={**LABELS, next(iter(LABELS)): "master"}
    )
    _, _, server = followed(({}, [master, pod(RUNNING)], [b"a"]), (SUCCEEDED, [pod(OVER)], [b"a"]))
    assert {path for path, _ in server.requests} == {"bert-worker-3/log"}
    assert server.requests[0][1] == {"container": "pytorch", "follow": "true"}


def test_a_new_run_is_told_by_its_pod_and_number():
    scenes = ({}, [pod(OVER)], [b"a"]), (SUCCEEDED, [pod(OVER, restarts=1)], [b"b"])
    assert followed(*scenes)[1] == ["worker 3 was restarted: pod bert-worker-3, run 2 of pytorch"]


def test_only_the_end_of_the_first_run_is_shown_and_all_that_comes():
    shown, _, _ = followed(
        ({}, [pod(RUNNING)], [b"a\n", b"b\n"]),
        ({}, [pod(RUNNING)], [b"a\nb\n", b"c\n"]),
        ({}, [pod(RUNNING, restarts=1)], [b"d\n", b"e\n"]),
        (SUCCEEDED, [pod(OVER, restarts=1)], [b"d\ne\n"]),
        first={"tailLines": "1"},
    )
    assert shown == "b\nc\nd\ne\n"


def test_another_container_is_followed_on_request():
    ended = pod(OVER)
    ended["status"]["phase"] = "Succeeded"
    _, _, server = followed((SUCCEEDED, [ended], [b"a"]), container="proxy")
    assert server.requests[0][1]["container"] == "proxy"


def test_a_container_that_the_pod_does_not_have_is_told():
    with pytest.raises(NoSuchContainer, match="has no container 'gpu'; it has proxy, pytorch"):
        followed((SUCCEEDED, [pod(OVER)], []), container="gpu")

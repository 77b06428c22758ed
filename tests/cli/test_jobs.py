"""`turnout jobs`, `describe`, `suspend` and `submit`: what is told of each kind, and what is written."""

import asyncio
import json
import sys
from pathlib import Path

import pytest
import pytest_asyncio
import yaml

from tests.controllers.jobs import NOW_S, job, merged, role
from turnout.cli.__main__ import main
from turnout.cli.jobs import (
    BadSubmission,
    JobRequest,
    age,
    describe_job,
    listing,
    rows,
    state,
    submission,
    suspend_patch,
)
from turnout.cli.views.listing import text
from turnout.controllers.kinds.registry import KINDS
from turnout.controllers.model import ControlledJob
from turnout.kube.times import rfc3339

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
WISH = JobRequest("bert", "team", "train:1", 2, 2, 2, 8, ["train.py", "--x"])


@pytest.mark.parametrize(
    ("status", "word"),
    [
        pytest.param({}, "New", id="nobody has looked at it"),
        pytest.param({"phase": "Pending"}, "Pending", id="a phase"),
        pytest.param(
            {"conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "True"}]},
            "Running",
            id="the newest condition",
        ),
        pytest.param(
            {"conditions": [{"type": "Created", "status": "True"}, {"type": "Running", "status": "False"}]},
            "Created",
            id="the newest that is true",
        ),
        pytest.param({"conditions": "none", "phase": 7}, "New", id="no list and no text"),
    ],
)
def test_the_state_of_a_job_is_one_word(status, word):
    assert state(status) == word


def test_a_job_is_a_line():
    status = {"replicaStatuses": {"Worker": {"active": 2, "restarts": 3}}, "phase": ""}
    raw = job(worker=role(4), status=status)
    raw["metadata"]["creationTimestamp"] = rfc3339(NOW_S - 5_400)
    (row,) = lines = rows(KINDS["PyTorchJob"], [raw], NOW_S)
    assert (row.running, row.replicas, row.restarts, row.age_s) == (2, 4, 3, 5_400)
    line = text(listing(lines), "table").split("\n")[1]
    assert line.split() == [
        "ns",
        "PyTorchJob",
        "bert",
        "New",
        "2/4",
        "3",
        "1h30m",
    ]
    assert json.loads(text(listing(lines), "json"))[0]["age_s"] == 5_400
    (refused,) = rows(KINDS["PyTorchJob"], [job()], NOW_S)
    assert text(listing([refused]), "table").split("\n")[1].split()[4] == "0/?"


@pytest.mark.parametrize(
    ("seconds", "text"), [(None, "-"), (5, "5s"), (60, "1m"), (61, "1m1s"), (7_200, "2h"), (90_000, "1d1h")]
)
def test_ages_are_as_kubectl_has_them(seconds, text):
    assert age(seconds) == text


def test_a_job_at_length_has_its_conditions_pods_and_events():
    raw = job(worker=role(1), status={"conditions": [{"type": "Failed", "status": "True", "message": "why"}]})
    pod = {"metadata": {"name": "bert-worker-0"}, "spec": {"nodeName": "gpu-7"}, "status": {"phase": "Running"}}
    event = {"reason": "NameTaken", "message": "Pod x exists", "lastTimestamp": "2026-01-01T00:00:00Z"}
    text = "\n".join(describe_job(KINDS["PyTorchJob"], raw, [pod], [event], NOW_S))
    for words in ("Failed=True  why", "bert-worker-0  Running  gpu-7  0 restarts", "NameTaken: Pod x exists"):
        assert words in text


def test_what_others_wrote_moves_no_cursor():
    """A status, a message and an Event are a tenant's words, on the terminal of whoever looks."""
    escape = "\x1b[2Jall is well\r"
    raw = job(worker=role(1), status={"phase": escape, "conditions": [{"type": escape, "message": escape}]})
    event = {"reason": escape, "message": f"{escape}\nsecond"}
    for line in describe_job(KINDS["PyTorchJob"], raw, [], [event], NOW_S):
        assert line.isprintable(), line


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_what_is_submitted_can_be_obeyed_and_suspended(kind):
    body = submission(kind, WISH)
    raw = {**body, "metadata": {**body["metadata"], "uid": "u"}}
    view = KINDS[kind].read(raw)
    assert isinstance(view, ControlledJob), view
    assert not view.policy.suspended
    assert KINDS[kind].read(merged(raw, suspend_patch(kind, on=True))).policy.suspended
    resumed = merged(merged(raw, suspend_patch(kind, on=True)), suspend_patch(kind, on=False))
    assert not KINDS[kind].read(resumed).policy.suspended


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("PyTorchJob", {"minimum": 3}, "is required"),
        ("PyTorchJob", {"workers": 0, "minimum": 0}, "is required"),
        ("MSJob", {"maximum": 4}, "a job of kind MSJob has one size"),
        ("Job", {}, "--kind Job: one of"),
    ],
)
def test_a_wish_that_a_kind_has_no_words_for_is_refused(kind, changes, why):
    with pytest.raises(BadSubmission, match=why):
        submission(kind, WISH._replace(**changes))


def test_a_dry_run_prints_what_would_be_made_and_asks_nobody(capsys):
    argv = ["submit", "--name", "bert", "--image", "train:1", "--workers", "2", "--max", "4", "--dry-run"]
    assert main([*argv, "--", "python", "train.py"]) == 0
    body = yaml.safe_load(capsys.readouterr().out)
    assert body["spec"]["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 4}
    assert main(argv) == 2
    assert "a command is needed" in capsys.readouterr().err


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def turnout(module_plane):
    """Run the command against a real API server that serves the kinds, and return what it says."""

    async def run(*argv, code=0):
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "turnout.cli", *argv[:1], "--kubeconfig", str(module_plane.kubeconfig), *argv[1:]),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await child.communicate()
        assert child.returncode == code, err.decode()
        return (out + err).decode()

    async with module_plane.api() as api:
        for file in sorted((ROOT / "deploy/crds").glob("*.yaml")):
            await api.create(yaml.safe_load(await asyncio.to_thread(file.read_text)))
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        await api.until(definitions, lambda crds: all(map(_served, crds)) or None, 30)
        yield run


def _served(crd):
    conditions = (crd.get("status") or {}).get("conditions") or ()
    return any(each["type"] == "Established" and each["status"] == "True" for each in conditions)


@pytest.mark.real
@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_is_submitted_listed_described_and_suspended(turnout):
    flags = ("--name", "bert", "--image", "train:1", "--workers", "2")
    assert await turnout("submit", "--kind", "MSJob", *flags, "--", "python", "t.py") == "MSJob/default/bert is made\n"
    assert "already exists" in await turnout("submit", "--kind", "MSJob", *flags, "--", "python", "t.py", code=1)
    assert "MSJob" in await turnout("jobs")
    (listed,) = json.loads(await turnout("jobs", "-n", "default", "-o", "json"))
    assert (listed["name"], listed["replicas"], listed["state"]) == ("bert", 3, "New")
    assert "MSJob default/bert" in await turnout("describe", "MSJob/default/bert")
    assert await turnout("suspend", "MSJob/default/bert") == "MSJob/default/bert is suspended\n"
    assert await turnout("unsuspend", "bert", "-n", "default") == "MSJob/default/bert goes on\n"
    assert "there is no MSJob 'gone' in namespace default" in await turnout("describe", "MSJob/default/gone", code=1)
    assert "has no worker of rank 0" in await turnout("logs", "msjob/bert", code=1)
    assert "no kind of job here" in await turnout("logs", "Foo/bert", code=2)
    assert "has no worker of rank 1" in await turnout("logs", "MSJob/default/bert", "--rank", "1", code=1)

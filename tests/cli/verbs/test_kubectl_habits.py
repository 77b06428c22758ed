"""Verbs as a person types them who knows kubectl: names, namespaces, labels, and sentences in place of raw errors."""

import asyncio
import contextlib
import io
import json

import pytest
import pytest_asyncio
import yaml

from tests.autoscaler.local_cluster import manifest
from tests.kube.world import kubeconfig, page, pod, scripted
from turnout.cli.__main__ import main
from turnout.cli.exit_codes import ExitCode
from turnout.kube.client.api_client import Client
from turnout.simulator.api.server.serve import serve

VOLCANO = "/apis/batch.volcano.sh/v1alpha1/namespaces/team-a/jobs"
BATCH = "/apis/batch/v1/namespaces/team-a/jobs"
PODS = "/api/v1/namespaces/team-a/pods"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def config(tmp_path_factory):
    """The kubeconfig of a cluster with VolcanoJobs bert and gpt, a batch Job, two nodes; its context is in team-a."""
    path = tmp_path_factory.mktemp("habits") / "config"
    async with serve(path) as _, await Client.open(str(path), minimal=True) as client:
        read = yaml.safe_load(path.read_text())
        read["contexts"][0]["context"]["namespace"] = "team-a"
        path.write_text(json.dumps(read))
        await client.create("/api/v1/namespaces", {"metadata": {"name": "team-a"}})
        for name, team in (("bert", "vision"), ("gpt", "speech")):
            body = manifest(name, 1, 1, 1, 1, {})
            body["metadata"] = {**body["metadata"], "namespace": "team-a", "labels": {"team": team}}
            await client.create(VOLCANO, body)
        template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "i"}]}}
        await client.create(BATCH, {"metadata": {"name": "plain"}, "spec": {"template": template}})
        await client.create(BATCH, {"metadata": {"name": "bert"}, "spec": {"template": template}})
        for name in ("n1", "n2"):
            await client.create("/api/v1/nodes", {"metadata": {"name": name, "labels": {"zone": name}}})
        yield str(path)


async def typed(config, *words):
    """Type a command. Return its exit code and what it prints, errors too."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        cut = words.index("--") if "--" in words else len(words)
        code = await asyncio.to_thread(main, [*words[:cut], "--kubeconfig", config, *words[cut:]])
    return code, out.getvalue()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("words", "code", "prints"),
    [
        pytest.param(
            ["describe", "gpt"], ExitCode.DONE, "VolcanoJob team-a/gpt", id="a name in the context's namespace"
        ),
        pytest.param(["describe", "vcjob/bert"], ExitCode.DONE, "VolcanoJob team-a/bert", id="a kind and a name"),
        pytest.param(
            ["describe", "bert", "-n", "default"],
            ExitCode.FAILED,
            "there is no job 'bert' in namespace default; `turnout jobs -n default` lists those that are there",
            id="no job of the name",
        ),
        pytest.param(["suspend", "gpt"], ExitCode.DONE, "VolcanoJob/team-a/gpt is suspended", id="suspend"),
        pytest.param(["unsuspend", "gpt"], ExitCode.DONE, "VolcanoJob/team-a/gpt goes on", id="unsuspend"),
        pytest.param(["pause", "gpt"], ExitCode.DONE, "VolcanoJob/team-a/gpt keeps its size", id="pause by a name"),
        pytest.param(
            ["pause", "bert"],
            ExitCode.FAILED,
            "'bert' may be Job/team-a/bert or VolcanoJob/team-a/bert: say which",
            id="pause of a name that two kinds have",
        ),
        pytest.param(
            ["resume", "job/bert"],
            ExitCode.DONE,
            "Job/team-a/bert is resized by the autoscaler again",
            id="resume of a kind and a name",
        ),
        pytest.param(
            ["pause", "PyTorchJob/team-a/none"],
            ExitCode.FAILED,
            "there is no PyTorchJob 'none' in namespace team-a",
            id="pause of a kind that nobody serves",
        ),
        pytest.param(
            ["pause", "vcjob/none"],
            ExitCode.FAILED,
            "there is no VolcanoJob 'none' in namespace",
            id="pause of nothing",
        ),
        pytest.param(
            ["pause", "--all", "--orders", "gone/orders"],
            ExitCode.FAILED,
            "gone/orders cannot be written: there is no namespace gone",
            id="an order into a namespace that is not there",
        ),
        pytest.param(
            ["logs", "gpt"], ExitCode.FAILED, "VolcanoJob/team-a/gpt has no worker of rank 0", id="logs of no pod"
        ),
        pytest.param(["history", "gpt"], ExitCode.DONE, "", id="history"),
        pytest.param(
            ["nodes", "-n", "default"], ExitCode.DONE, "no node is tainted", id="nodes take -n, as kubectl's do"
        ),
        pytest.param(["topology", "-A"], ExitCode.DONE, "", id="topology takes -A"),
        pytest.param(
            ["nodes", "untaint", "n9"], ExitCode.FAILED, "there is no node 'n9'", id="a node that is not there"
        ),
    ],
)
async def test_a_verb_answers_as_kubectl_would(config, words, code, prints):
    ended, printed = await typed(config, *words)
    assert prints in printed
    assert "404 page not found" not in printed
    assert ended == code


@pytest.mark.asyncio(loop_scope="module")
async def test_jobs_of_other_controllers_are_counted(config):
    _, printed = await typed(config, "jobs")
    assert printed.splitlines()[-1] == (
        "not shown, since other controllers run them: 2 Job; `turnout why` and `turnout top` know them"
    )


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("more", "names"),
    [
        pytest.param(["-l", "team=vision"], ["bert"], id="by a label"),
        pytest.param(["--sort-by", "name"], ["bert", "gpt"], id="sorted"),
        pytest.param(["-A"], ["bert", "gpt"], id="of all namespaces"),
        pytest.param(["-n", "default"], [], id="of a namespace without jobs"),
    ],
)
async def test_jobs_are_listed_without_headers(config, more, names):
    _, printed = await typed(config, "jobs", "--no-headers", *more)
    assert [line.split()[2] for line in printed.splitlines()] == names


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_is_submitted_to_the_namespace_of_the_context(config):
    words = ["submit", "--kind", "VolcanoJob", "--name", "new", "--image", "i", "--", "true"]
    assert await typed(config, *words) == (ExitCode.DONE, "VolcanoJob/team-a/new is made\n")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_kind_that_nobody_serves_is_told_in_a_sentence(config):
    code, printed = await typed(config, "submit", "--name", "new", "--image", "i", "--", "true")
    assert (code, printed.count("\n")) == (ExitCode.FAILED, 1)
    assert "the cluster serves no PyTorchJob: its definition pytorchjobs.kubeflow.org is not installed" in printed
    code, printed = await typed(
        config, "submit", "--kind", "VolcanoJob", "-n", "gone", "--name", "new", "--image", "i", "--", "true"
    )
    assert code == ExitCode.FAILED
    assert "gone" in printed


@pytest.mark.asyncio(loop_scope="module")
async def test_a_job_in_detail_begins_with_its_line_and_the_heads_over_it(config):
    _, printed = await typed(config, "describe", "gpt")
    assert printed.splitlines()[1].split() == ["NAMESPACE", "KIND", "NAME", "STATE", "PODS", "RESTARTS", "AGE"]


@pytest.mark.asyncio
async def test_another_user_is_asked_for_in_every_request(tmp_path):
    async with scripted() as script:
        script.lists = [page([pod("a")])]
        code, _ = await typed(kubeconfig(tmp_path, script.url), "nodes", "--as", "ana")
    assert code == ExitCode.DONE
    assert {request.headers["Impersonate-User"] for request in script.asked} == {"ana"}


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("words", "lists"),
    [
        pytest.param(["nodes", "-l", "zone=a"], {"/api/v1/nodes"}, id="nodes"),
        pytest.param(
            ["topology"],
            {"/api/v1/nodes", "/api/v1/pods", "/api/v1/namespaces/turnout-system/configmaps"},
            id="the map and what is on it",
        ),
        pytest.param(
            ["history", "vcjob/bert", "-n", "a"],
            {
                "/apis/batch.volcano.sh/v1alpha1/namespaces/a/jobs",
                "/api/v1/namespaces/a/events",
                "/api/v1/namespaces/a/pods",
            },
            id="history of a kind and a name",
        ),
    ],
)
async def test_only_what_is_shown_is_asked_for(words, lists, tmp_path):
    async with scripted() as script:
        await typed(kubeconfig(tmp_path, script.url), *words)
    assert {request.path for request in script.asked} == lists


@pytest.mark.asyncio
async def test_a_request_ends_when_its_time_is_over(tmp_path):
    from tests.kube.world import mute

    async with scripted() as script:
        script.lists = [mute()]
        code, printed = await typed(kubeconfig(tmp_path, script.url), "nodes", "--request-timeout", "0.05s")
    assert code == ExitCode.FAILED
    assert "no answer within 0.05 s" in printed

"""`turnout page` as a process, and with the rights that a real API server grants."""

import asyncio
import signal
import sys
from types import SimpleNamespace

import aiohttp
import pytest

from hack.lint.code_blocks import run_by
from tests.cli.page.served import GPU, asking, fill, next_event
from turnout.cli.exit_codes import ExitCode
from turnout.kube.client.api_client import Client
from turnout.simulator.api.server.serve import serve


async def start(kubeconfig, *words):
    """Start the command; give the process and the first line that it prints."""
    argv = (sys.executable, "-m", "turnout.cli", "page", *words, "--kubeconfig", str(kubeconfig))
    child = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE)
    async with asyncio.timeout(30):
        line = (await child.stdout.readline()).decode().strip()
    return child, line or (await child.stderr.read()).decode()


async def observed(address, token):
    """Wait until the page has observed the cluster, as its stream tells; return that event."""
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession() as session, session.get(f"{address}/api/v1/stream", headers=headers) as response:
        while not (event := await next_event(response))["version"]:
            pass
        return event


@pytest.mark.asyncio
async def test_the_command_prints_an_address_that_shows_the_cluster(tmp_path):
    (block,) = run_by("tests/cli/page/test_command.py::test_the_command_prints_an_address_that_shows_the_cluster")
    async with serve(tmp_path / "kubeconfig"), await Client.open(str(tmp_path / "kubeconfig")) as client:
        await fill(client)
        child, line = await start(tmp_path / "kubeconfig", *block.text.split()[2:], "--port", "0")
        try:
            address, _, token = line.partition("/#token=")
            assert address.startswith("http://127.0.0.1:")
            async with asking(address, token) as ask:
                await observed(address, token)
                assert (await ask("summary"))[1]["used_gpus"] == 8
            async with asking(address, "guess") as ask:
                assert (await ask("summary"))[0] == 401
            child.send_signal(signal.SIGINT)
            assert await asyncio.wait_for(child.wait(), 30) == ExitCode.INTERRUPTED
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()


@pytest.mark.asyncio
async def test_a_port_that_is_taken_is_named_with_the_next_step(tmp_path):
    async with serve(tmp_path / "kubeconfig") as served:
        port = served.address.rpartition(":")[2]
        child, line = await start(tmp_path / "kubeconfig", "--port", port)
        assert f"cannot listen on 127.0.0.1:{port}" in line
        assert "name another port" in line
        assert await child.wait() == ExitCode.FAILED


VIEWER = {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
RBAC = "/apis/rbac.authorization.k8s.io/v1"


@pytest.mark.real
def test_viewers_see_what_a_real_api_server_lets_them_list(control_plane):
    """Two accounts with tokens of the API server: one may list pods of a namespace, one nothing."""
    plane = control_plane
    for namespace in ("team-a", "team-b"):
        plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    for explain in ("ann", "eve"):
        plane.request("POST", "/api/v1/namespaces/default/serviceaccounts", {"metadata": {"name": explain}})
    subject = {"kind": "ServiceAccount", "name": "ann", "namespace": "default"}
    plane.request("POST", f"{RBAC}/namespaces/team-a/roles", {"metadata": {"name": "viewer"}, "rules": [VIEWER]})
    binding = {
        "metadata": {"name": "viewer"}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "viewer"},
    }  # fmt: skip
    plane.request("POST", f"{RBAC}/namespaces/team-a/rolebindings", binding)
    for namespace in ("team-a", "team-b"):
        spec = {"containers": [{"name": "c", "image": "i", "resources": {"limits": {GPU: "8"}}}]}
        plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", {"metadata": {"name": "waits"}, "spec": spec})
    tokens = SimpleNamespace(
        ann=plane.service_account_token("default", "ann"), eve=plane.service_account_token("default", "eve")
    )
    (block,) = run_by("tests/cli/page/test_command.py::test_viewers_see_what_a_real_api_server_lets_them_list")
    assert asyncio.run(_jobs_by_viewer(plane.kubeconfig, block.text.split()[2:], tokens)) == {
        "ann": ["Pod/team-a/waits"],
        "eve": [],
        "a token of nobody": 401,
    }


async def _jobs_by_viewer(kubeconfig, words, tokens):
    """Return the jobs that each viewer is shown, by the page's own process."""
    child, line = await start(kubeconfig, *words, "--listen=127.0.0.1:0", "--metrics-bind=127.0.0.1:0")
    address = f"http://{line.rpartition(' ')[2]}"
    try:
        jobs = {}
        for name, token in vars(tokens).items():
            async with asking(address, token) as ask:
                await observed(address, token)
                jobs[name] = [each["job"] for each in (await ask("jobs"))[1]["items"]]
        async with asking(address, "nobody") as ask:
            jobs["a token of nobody"] = (await ask("jobs"))[0]
        return jobs
    finally:
        child.terminate()
        await child.wait()

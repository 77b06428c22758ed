"""`turnout why` and `turnout replay-decisions` as commands: on a yard, and where little or nothing can be seen."""

import asyncio
import json
import sys

import pytest
import pytest_asyncio
from aiohttp import web

from tests.autoscaler.world import GPU
from tests.autoscaler.yard import JOBS, lending_yard


async def turnout(*args):
    """The command as a process: exit code, what it printed, what it complained of."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "console", *args), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(60):
            out, complaint = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    return child.returncode, out.decode(), complaint.decode()


@pytest_asyncio.fixture
async def cluster(tmp_path):
    async with lending_yard(tmp_path) as made:
        yield made


@pytest.mark.asyncio
async def test_on_a_yard_it_tells_why_a_job_waits_and_what_another_has(cluster):
    config = ("--kubeconfig", str(cluster.kubeconfig))
    await cluster.lender("--act")
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("needs", 7)
    await cluster.says('"NeedsMore"')

    code, out, _ = await turnout("why", "needs", *config)
    assert code == 0
    head, *lines = out.splitlines()
    assert head.startswith("VolcanoJob/default/needs has waited for ")
    assert head.endswith(": NeedsMore")
    text = {line[:10].strip(): line[10:] for line in lines}
    assert text["held by"] == "VolcanoJob/default/lends (2 + 6 elastic)"
    assert text["room"] == f"2 of 2 nodes let a worker in (1 {GPU}); no whole worker fits now"
    assert text["gang"] == "it needs 7 workers, 0 with a node: 7 lacking"
    assert text["start"].startswith("likely in ")
    assert "\x1b" not in out

    code, out, _ = await turnout("why", "volcanojob/default/lends", "--json", *config)
    assert code == 0
    now = json.loads(out)
    assert (now["state"], now["reason"], now["size"]["elastic"], now["start"]) == ("runs", "AtMax", 6, None)

    says = "there is no job 'need' in namespace default; did you mean VolcanoJob/default/needs?"
    assert await turnout("why", "need", *config) == (1, "", f"turnout why: {says}\n")


@pytest.mark.asyncio
async def test_the_log_of_a_lender_at_work_is_decided_again_to_the_last_word(cluster, tmp_path):
    log = tmp_path / "decisions"
    lender = await cluster.lender("--act", "--decision-log", str(log))
    await cluster.submit("lends", 2, 8)
    await cluster.until(lends=8)
    await cluster.submit("gets", 3)
    await cluster.until(lends=5, gets=3)
    lender.terminate()
    await lender.wait()
    code, out, complaint = await turnout("replay-decisions", str(log))
    assert (code, complaint) == (0, "")
    assert out.endswith("looks, all identical\n")
    assert int(out.split()[0]) >= 3
    log.write_bytes(log.read_bytes().replace(b'"WaitsForRoom"', b'"SchedulersTurn"'))
    code, _, complaint = await turnout("replay-decisions", str(log))
    assert code == 1
    assert "VolcanoJob/default/gets: the log has SchedulersTurn, 3 workers, now it is WaitsForRoom" in complaint


def kubeconfig(folder, server):
    """A file that leads to an API server."""
    told = {
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "users": [{"name": "u", "user": {}}],
        "current-context": "c",
    }
    (folder / "config").write_text(json.dumps(told))
    return folder / "config"


@pytest_asyncio.fixture
async def server(tmp_path):
    """An API server of empty lists. forbidden: paths that may not be listed."""
    forbidden = set()

    async def answer(request):
        if request.path in forbidden:
            return web.json_response({"kind": "Status", "code": 403, "reason": "Forbidden"}, status=403)
        return web.json_response({"metadata": {"resourceVersion": "1"}, "items": []})

    app = web.Application()
    app.add_routes([web.get("/{path:.*}", answer)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield str(kubeconfig(tmp_path, f"http://127.0.0.1:{runner.addresses[0][1]}")), forbidden
    await runner.cleanup()


@pytest.mark.asyncio
async def test_every_right_that_is_missing_is_named_as_kubectl_takes_it(server):
    config, forbidden = server
    forbidden |= {"/api/v1/nodes", JOBS.replace("/namespaces/default", "")}
    code, out, complaint = await turnout("why", "a", "--kubeconfig", config)
    assert (code, out) == (1, "")
    assert "you may not list nodes, jobs.batch.volcano.sh in the whole cluster" in complaint
    assert complaint.count("\n") == 1


@pytest.mark.asyncio
async def test_without_the_right_to_the_lenders_own_configmaps_it_goes_on(server):
    config, forbidden = server
    forbidden |= {"/api/v1/namespaces/turnout-system/configmaps"}
    code, _, complaint = await turnout("why", "a", "--kubeconfig", config)
    assert (code, complaint) == (
        1,
        "turnout why: there is no job 'a' in namespace default; there are 0 jobs in all\n",
    )


@pytest.mark.asyncio
async def test_what_it_cannot_do_is_said_in_a_line(tmp_path):
    missing = tmp_path / "none"
    code, _, complaint = await turnout("why", "a", "--kubeconfig", str(missing))
    assert code == 1
    assert str(missing) in complaint
    config = kubeconfig(tmp_path, "http://127.0.0.1:9")
    code, _, complaint = await turnout("why", "a", "--kubeconfig", str(config))
    assert code == 1
    assert "the API server cannot be reached" in complaint
    assert "127.0.0.1:9" in complaint
    assert complaint.count("\n") == 1
    code, _, complaint = await turnout("why", "a", "--cooldown-s", "-1")
    assert (code, complaint) == (2, "turnout why: --cooldown-s is -1.0: it must not be negative\n")
    assert (await turnout("why"))[0] == 2


@pytest.mark.asyncio
@pytest.mark.parametrize("text", [None, "", "not a log\n"])
async def test_a_log_of_which_nothing_can_be_read_is_no_success(tmp_path, text):
    file = tmp_path / "log"
    if text is not None:
        file.write_text(text)
    code, out, complaint = await turnout("replay-decisions", str(file))
    assert (code, out) == (1, "")
    assert str(file) in complaint

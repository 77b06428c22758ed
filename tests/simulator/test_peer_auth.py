"""The callers that the embedded API admits: those who show its token, and no web page."""

import asyncio
import os
import stat

import aiohttp
import pytest

from turnout.cli.local_cluster.daemon import KUBECONFIG
from turnout.cli.local_cluster.prestart import prestart
from turnout.simulator.api.kubeconfig import kubeconfig, prefix
from turnout.simulator.api.server.serve import serve
from turnout.simulator.cluster.kubeconfig import read_kubeconfig

NODES = "/api/v1/nodes"
MODE = 0o600


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("headers", "code"),
    [
        pytest.param({}, 200, id="a program"),
        pytest.param({"Host": "localhost:80"}, 200, id="by name"),
        pytest.param({"Origin": "http://evil.example"}, 403, id="a page that posts to us"),
        pytest.param({"Origin": "null"}, 403, id="a page that hides"),
        pytest.param({"Host": "evil.example"}, 403, id="a name that was made to lead here"),
    ],
)
async def test_a_web_page_is_refused(api_server, headers, code):
    async with api_server.session.get(api_server.url + NODES, headers=headers) as answer:
        assert answer.status == code


@pytest.mark.asyncio
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    ("path", "bearer", "admitted"),
    [
        pytest.param("", "", False, id="no token"),
        pytest.param("", "Bearer {token}", True, id="the token as bearer"),
        pytest.param("", "bearer {token}", False, id="no bearer as it is written"),
        pytest.param("", "Basic {token}", False, id="the token as something else"),
        pytest.param("", "Bearer {token}x", False, id="more than the token"),
        pytest.param("", "Bearer ", False, id="an empty token"),
        pytest.param("{prefix}", "", True, id="the token in the path"),
        pytest.param("{prefix}x", "", False, id="more than it in the path"),
        pytest.param("/token/", "", False, id="an empty one in the path"),
        pytest.param("/token/%FF", "", False, id="a path that is not UTF-8"),
    ],
)
async def test_a_caller_shows_the_token_or_is_refused(api_server, path, bearer, admitted, method):
    served = api_server.served
    known = {"token": served.token, "prefix": prefix(served.token)}
    headers = {"Authorization": bearer.format(**known)} if bearer else {}
    body = {"metadata": {"name": "n"}} if method == "POST" else None
    url = served.address + path.format(**known) + NODES
    async with api_server.session.request(method, url, json=body, headers=headers) as answer:
        assert (answer.status < 300) is admitted
        assert admitted or (answer.status, (await answer.json())["reason"]) == (401, "Unauthorized")


@pytest.mark.asyncio
async def test_a_query_stays_behind_a_token_in_the_path(api_server):
    await api_server.ask("POST", NODES, {"metadata": {"name": "n"}})
    _, found = await api_server.ask("GET", NODES, fieldSelector="metadata.name=other")
    assert found["items"] == []


@pytest.mark.asyncio
async def test_whoever_closes_at_once_runs_nothing(api_server):
    """A socket that its owner has closed is in the kernel's table without an owner, and so told nobody's user."""
    port = int(api_server.served.address.rpartition(":")[2])
    body = b'{"metadata":{"name":"planted"}}'
    head = f"POST {NODES} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    for _ in range(50):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head.encode() + b"\r\n\r\n" + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await api_server.ask("GET", NODES))[1]["items"] == []


@pytest.mark.asyncio
async def test_no_user_of_this_machine_gets_in_without_the_token(api_server):
    port = api_server.served.address.rpartition(":")[2]
    ask = f"GET {NODES} HTTP/1.0\\r\\nHost: 127.0.0.1\\r\\n\\r\\n"
    script = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{ask}' >&3; cat <&3"
    others = (65534,) if os.getuid() == 0 else ()  # only root can become somebody else
    for uid in (os.getuid(), *others):
        child = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE, user=uid)
        output, _ = await child.communicate()
        assert output.split()[1] == b"401"


@pytest.mark.asyncio
async def test_the_kubeconfig_has_the_token_and_its_owner_alone_reads_it(tmp_path):
    file = tmp_path / "kubeconfig"
    file.write_text("an older one")
    file.chmod(0o644)
    tokens = set()
    for _ in range(2):
        async with serve(file) as served, aiohttp.ClientSession() as session:
            assert stat.S_IMODE(file.stat().st_mode) == MODE
            access = read_kubeconfig(file.read_bytes())
            assert (access.token, access.url) == (served.token, served.url)
            tokens.add(access.token)
            async with session.get(access.url + NODES) as answer:
                assert answer.status == 200
    assert len(tokens) == 2
    assert min(map(len, tokens)) > 40


def test_a_kubeconfig_is_there_early_for_its_owner_alone(tmp_path):
    file = tmp_path / KUBECONFIG
    file.write_text("an older one")
    file.chmod(0o666)
    begun = prestart(tmp_path, 0, extender=False)
    try:
        assert stat.S_IMODE(file.stat().st_mode) == MODE
        address = f"http://127.0.0.1:{begun.listening.getsockname()[1]}"
        assert file.read_text() == kubeconfig(address, begun.token)
    finally:
        begun.listening.close()

"""The transport of commands on servers that do odd things with their connections."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from tests.kube.world import kubeconfig
from turnout.kube.client.api_client import Client
from turnout.kube.errors import Unauthorised, Unreachable

pytestmark = pytest.mark.asyncio
PATH = "/api/v1/pods"


class Raw:
    """A server that sends these bytes to each request of a connection in turn. heard: requests by connection."""

    def __init__(self, answers, leaves):
        self.answers, self.leaves, self.heard = answers, leaves, []

    async def serve(self, reader, writer):
        self.heard.append(lines := [])
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                lines.append(head.split(b" ", 1)[0].decode())
                length = next((int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length")), 0)
                await reader.readexactly(length)
                writer.write(self.answers[min(len(lines), len(self.answers)) - 1])
                await writer.drain()
                if self.leaves:
                    return
        except asyncio.IncompleteReadError:
            return
        finally:
            writer.close()


@asynccontextmanager
async def speaking(folder, *answers, leaves=False):
    """A server of raw bytes and a client on it. leaves: it closes each connection after one answer."""
    raw = Raw(answers, leaves)
    server = await asyncio.start_server(raw.serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        async with await Client.open(kubeconfig(folder, f"http://127.0.0.1:{port}"), minimal=True) as client:
            yield raw, client
    finally:
        server.close()
        await server.wait_closed()


def sized(body):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)


async def test_a_connection_is_used_again(tmp_path):
    async with speaking(tmp_path, sized(b"1"), sized(b"2")) as (raw, client):
        assert [await client.get(PATH), await client.get(PATH)] == [b"1", b"2"]
    assert raw.heard == [["GET", "GET"]]


async def test_a_read_is_repeated_where_the_server_has_left_a_used_connection(tmp_path):
    async with speaking(tmp_path, sized(b"1"), leaves=True) as (raw, client):
        assert [await client.get(PATH), await client.get(PATH)] == [b"1", b"1"]
    assert [requests for requests in raw.heard if requests] == [["GET"], ["GET"]]


async def test_a_write_goes_over_a_connection_of_its_own(tmp_path):
    async with speaking(tmp_path, sized(b"1")) as (raw, client):
        await client.get(PATH)
        await client.create(PATH, {"a": 1})
    assert raw.heard == [["GET"], ["POST"]]


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\nup to the end", b"up to the end", id="a body without a length"),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", b"a", id="an old version"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n" + sized(b"b"), b"b", id="an answer after another"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", b"ab", id="chunks"),
    ],
)
async def test_an_answer_is_read_to_its_end(tmp_path, answer, body):
    async with speaking(tmp_path, answer, leaves=True) as (_, client):
        assert await client.get(PATH) == body


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 OK\r\n\r\n", id="no code"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n", id="a length that is no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nab", id="less than its length"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="a chunk without a size"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 600_000, id="a head without an end"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_told(tmp_path, answer):
    async with speaking(tmp_path, answer, leaves=True) as (_, client):
        with pytest.raises(Unreachable):
            await client.get(PATH)


async def test_a_token_of_two_lines_never_leaves(tmp_path):
    async with speaking(tmp_path, sized(b"1")) as (raw, _):
        (tmp_path / "token").write_text("first\nX-Other: header")
        async with await Client.open(str(tmp_path / "kubeconfig"), minimal=True) as client:
            with pytest.raises(Unauthorised, match="cannot be read"):
                await client.get(PATH)
    assert raw.heard == []


async def test_a_token_file_may_end_with_a_line_end(tmp_path):
    async with speaking(tmp_path, sized(b"1")):
        (tmp_path / "token").write_text("first\n")
        async with await Client.open(str(tmp_path / "kubeconfig"), minimal=True) as client:
            assert await client.get(PATH) == b"1"

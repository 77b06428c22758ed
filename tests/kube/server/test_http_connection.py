"""The end of an HTTP server: open requests get their answers, and no handler delays the end beyond its deadline."""

import asyncio
import socket
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from turnout.kube.server.http_connection import ConnectionLimits, Server

GRACE_S = 0.6


@asynccontextmanager
async def served(handler):
    """A listening server, and a client with one request that `handler` has begun to answer."""
    begun = asyncio.Event()

    async def answer(request):
        request.protocol.head_received()
        begun.set()
        try:
            return await handler(request)
        finally:
            request.protocol.response_ready()

    server = Server(answer, ConnectionLimits())
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        await server.listen(bound_socket)
        reader, writer = await asyncio.open_connection(*bound_socket.getsockname())
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        async with asyncio.timeout(10):
            await begun.wait()
        yield server, reader
        writer.close()


@pytest.mark.asyncio
@pytest.mark.parametrize("outlives_cancel", [
    pytest.param(False, id="a handler that never answers"),
    pytest.param(True, id="a handler that does not end when it is cancelled"),
])  # fmt: skip
async def test_a_stuck_handler_delays_the_end_by_one_grace(outlives_cancel):
    test_ends = asyncio.Event()

    async def handler(request):
        while not test_ends.is_set():
            try:
                await test_ends.wait()
            except asyncio.CancelledError:
                if not outlives_cancel:
                    raise
        return web.Response()

    async with served(handler) as (server, reader):
        began = asyncio.get_running_loop().time()
        await server.close(GRACE_S)
        seconds = asyncio.get_running_loop().time() - began
        assert await reader.read() == b""
        test_ends.set()
    assert GRACE_S <= seconds < 1.5 * GRACE_S


@pytest.mark.asyncio
async def test_an_open_request_is_answered_before_the_end():
    is_closing = asyncio.Event()

    async def handler(request):
        await is_closing.wait()
        return web.Response(text="answer")

    async with served(handler) as (server, reader):
        closing = asyncio.create_task(server.close(GRACE_S))
        asyncio.get_running_loop().call_soon(is_closing.set)
        answer = await reader.read()
        await closing
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"answer")

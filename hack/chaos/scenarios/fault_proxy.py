"""An HTTP proxy in front of an API server that injects faults.

Each scenario gives a function that decides for each request: pass it on, refuse it, delay it, or hold back its answer.
Every request is recorded with its method, path and answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web

from turnout.kube.client.connections import Connections
from turnout.simulator.api.kubeconfig import kubeconfig

_HOP = ("host", "transfer-encoding", "connection", "content-length")


@dataclass(frozen=True, slots=True)
class Answer:
    """The treatment of a request."""

    code: int = 0  # HTTP status; 0 passes the request on
    body: bytes = b""
    delay_s: float = 0.0  # seconds before the request is answered or passed on
    hold_answer_s: float = 0.0  # seconds between the answer of the server and the answer of the proxy


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """A request that came, and the code with which it was answered."""

    method: str
    path: str
    code: int


PASS = Answer()


def refusal(code: int, reason: str, message: str) -> Answer:
    """Return an error answer with a Status object as its body, as API servers send it.

    code: of HTTP. reason, message: of the Status; they must not need escapes in JSON.
    """
    head = '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure"'
    return Answer(code, f'{head},"code":{code},"reason":"{reason}","message":"{message}"}}'.encode())


@dataclass(slots=True)
class FaultProxy:
    """A running proxy."""

    target: str
    session: aiohttp.ClientSession
    url: str = ""
    decide: Callable[[web.Request], Answer] = lambda request: PASS  # decides what is done to each request
    requests: list[LoggedRequest] = field(default_factory=list)  # every request
    touched_count: int = 0  # number of requests that were refused or delayed

    def pass_all(self) -> None:
        """Pass on all requests unchanged from now on."""
        self.decide = lambda request: PASS

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Treat one request as `decide` decides: pass it on to the target, answer it with an error, or delay it.

        Record it in `requests`. If the target cannot be reached, the connection is aborted and the code is 0.
        """
        answer = self.decide(request)  # type: ignore[arg-type]
        self.touched_count += answer is not PASS
        await asyncio.sleep(answer.delay_s)
        if answer.code:
            self.requests.append(LoggedRequest(request.method, request.path, answer.code))
            return web.Response(status=answer.code, body=answer.body, content_type="application/json")
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        try:
            body = await request.read()
            async with self.session.request(
                request.method, self.target + request.path_qs, headers=headers, data=body or None
            ) as found:
                self.requests.append(LoggedRequest(request.method, request.path, found.status))
                await asyncio.sleep(answer.hold_answer_s)
                if "watch" in request.query and found.status == 200:
                    return await _watch(request, found)
                forwarded = {key: value for key, value in found.headers.items() if key.lower() not in _HOP}
                return web.Response(status=found.status, body=await found.read(), headers=forwarded)
        except (aiohttp.ClientError, ConnectionError):
            self.requests.append(LoggedRequest(request.method, request.path, 0))
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)  # nobody gets it: the connection is gone


async def _watch(request: web.BaseRequest, found: aiohttp.ClientResponse) -> web.StreamResponse:
    """Pass the lines of a watch on to the client until either side ends it."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    with suppress(ConnectionError, aiohttp.ClientError):
        async for line in found.content:
            await response.write(line)
    return response


def _session(connections: Connections, trust: ssl.SSLContext | None) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=trust or True, socket_factory=connections)
    timeout = aiohttp.ClientTimeout(total=None)
    return aiohttp.ClientSession(connector=connector, read_bufsize=4 * 2**20, timeout=timeout)


@asynccontextmanager
async def fault_proxy(target: str, trust: ssl.SSLContext | None = None) -> AsyncIterator[FaultProxy]:
    """Run a proxy on loopback in front of the server `target` until the block ends.

    trust: TLS context for the server's certificate; None for plain HTTP.
    """
    async with Connections() as connections, _session(connections, trust) as session:
        proxy = FaultProxy(target, session)
        server = web.Server(proxy.handle, access_log=None)
        runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            proxy.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield proxy
        finally:
            await runner.cleanup()


def kubeconfig_with_token(url: str, token_file: str) -> str:
    """Return a kubeconfig for the API server at `url`, whose user shows the token in `token_file`."""
    return kubeconfig(url).replace('"user": {}', f'"user": {{"tokenFile": "{token_file}"}}')

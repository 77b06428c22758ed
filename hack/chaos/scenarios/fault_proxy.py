"""An HTTP proxy before an API server, which passes requests on until it is told to do worse.

What it does to a request or to a line of a watch is settled by two functions of its owner, so that each scenario says
its own faults. Every request is written down with its time, path and answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from turnout.kube.client.connections import Connections
from turnout.simulator.api.kubeconfig import kubeconfig

_HOP = ("host", "transfer-encoding", "connection", "content-length")


@dataclass(frozen=True, slots=True)
class Answer:
    """Says what is done to a request. code: 0 passes it on. slow_s: seconds before that.

    mute_s: seconds after the server has done it, before its answer is given.
    """

    code: int = 0
    body: bytes = b""
    slow_s: float = 0.0
    mute_s: float = 0.0
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """A request that came. at_s: of the event loop's clock. code: as answered."""

    at_s: float
    method: str
    path: str
    watch: bool
    code: int


PASS = Answer()


def refusal(code: int, reason: str, message: str, retry_after_s: int = 0) -> Answer:
    """Make an answer with a Status, as API servers refuse."""
    details = f',"details":{{"retryAfterSeconds":{retry_after_s}}}' if retry_after_s else ""
    head = '{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure"'
    body = f'{head},"code":{code},"reason":"{reason}","message":"{message}"{details}}}'
    headers = (("Content-Type", "application/json"),)
    return Answer(
        code, body.encode(), headers=headers + ((("Retry-After", str(retry_after_s)),) if retry_after_s else ())
    )


@dataclass(slots=True)
class FaultProxy:
    """A running proxy. judge: settles each request. lines: settles each line of a watch; none is forwarded for ().

    seen: every request. touched: requests that were refused or delayed, and lines that were changed, held or added.
    """

    target: str
    session: aiohttp.ClientSession
    url: str = ""
    judge: Callable[[web.Request], Answer] = lambda request: PASS
    lines: Callable[[bytes], Sequence[bytes]] = lambda line: (line,)
    seen: list[Seen] = field(default_factory=list)
    touched: int = 0
    _watches: set[asyncio.Task[object]] = field(default_factory=set)

    def heal(self) -> None:
        """Pass everything on again."""
        self.judge, self.lines = lambda request: PASS, lambda line: (line,)

    def drop(self) -> None:
        """Cut every watch."""
        self.touched += len(self._watches)
        for task in self._watches:
            task.cancel()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        assert isinstance(request, web.BaseRequest)
        answer, watch = self.judge(request), request.query.get("watch", "").lower() in ("1", "true")  # type: ignore[arg-type]
        self.touched += answer is not PASS
        at_s = asyncio.get_running_loop().time()
        if answer.slow_s:
            await asyncio.sleep(answer.slow_s)
        if answer.code:
            self.seen.append(Seen(at_s, request.method, request.path, watch, answer.code))
            return web.Response(status=answer.code, body=answer.body, headers=CIMultiDict(answer.headers))
        headers = {key: value for key, value in request.headers.items() if key.lower() not in _HOP}
        timeout = aiohttp.ClientTimeout(total=None)
        try:
            body = await request.read()
            async with self.session.request(
                request.method, self.target + request.path_qs, headers=headers, data=body or None, timeout=timeout
            ) as found:
                self.seen.append(Seen(at_s, request.method, request.path, watch, found.status))
                await asyncio.sleep(answer.mute_s)
                if watch and found.status == 200:
                    return await self._watch(request, found)
                kept = {key: value for key, value in found.headers.items() if key.lower() not in _HOP}
                return web.Response(status=found.status, body=await found.read(), headers=kept)
        except (aiohttp.ClientError, ConnectionError):
            self.seen.append(Seen(at_s, request.method, request.path, watch, 0))
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)  # nobody gets it: the connection is gone

    async def _watch(self, request: web.BaseRequest, found: aiohttp.ClientResponse) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        task = asyncio.current_task()
        assert task is not None
        feeding = asyncio.ensure_future(self._feed(found, response))
        self._watches.add(feeding)
        with suppress(ConnectionError, aiohttp.ClientError, asyncio.CancelledError):
            await feeding
        self._watches.discard(feeding)
        if request.transport is not None and feeding.cancelled():
            request.transport.abort()
        if task.cancelling():
            raise asyncio.CancelledError
        return response

    async def _feed(self, found: aiohttp.ClientResponse, response: web.StreamResponse) -> None:
        async for line in found.content:
            told = self.lines(line)
            self.touched += told != (line,)
            for each in told:
                await response.write(each)


def _session(connections: Connections, trust: ssl.SSLContext | None) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=trust or True, socket_factory=connections)
    return aiohttp.ClientSession(connector=connector, read_bufsize=4 * 2**20)


@asynccontextmanager
async def fault_proxy(target: str, trust: ssl.SSLContext | None = None) -> AsyncIterator[FaultProxy]:
    """Run a proxy on loopback before the server at this URL until the block ends. trust: in whose certificates."""
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
            proxy.drop()
            await runner.cleanup()


def kubeconfig_with_token(url: str, token_file: str) -> str:
    """Return a kubeconfig whose user shows the token of a file."""
    return kubeconfig(url).replace('"user": {}', f'"user": {{"tokenFile": "{token_file}"}}')

"""Parts of the tests of kube: a scripted API server, receivers that remember."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

from aiohttp import web

from turnout.kube.client.api_client import Client

PATIENCE_S = 10  # of real time: past it a test hangs, whatever it waits for


class Dice:
    """A random generator that always falls the same way: 0 = the least, 1 = the most."""

    def __init__(self, fall=1.0):
        self.fall = fall

    def random(self):
        return self.fall

    def uniform(self, low, high):
        return low + (high - low) * self.fall


class Receiver:
    """Remembers what it was told."""

    def __init__(self, refuse=None):
        self.told, self.objects, self._refuse, self._news = [], {}, refuse, asyncio.Event()

    def put(self, obj):
        meta = obj.metadata
        self.told.append(f"put {meta.name}@{meta.resource_version}")
        self._news.set()
        if self._refuse and self._refuse(obj):
            raise self._refuse(obj)
        self.objects[meta.namespace, meta.name] = obj

    def drop(self, key):
        self.told.append(f"drop {key.name}#{key.uid}")
        self.objects.pop((key.namespace, key.name), None)
        self._news.set()

    def synced(self, version):
        self.told.append("synced")
        self._news.set()

    async def until(self, *words):
        """Wait until all of these were told."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(word in self.told for word in words):
                self._news.clear()
                await self._news.wait()


def pod(name, version=1, uid=None, namespace="ml", **more):
    meta = {"name": name, "namespace": namespace, "uid": uid or f"u-{name}", "resourceVersion": str(version)}
    return {"metadata": meta, **more}


def event(word, obj):
    return json.dumps({"type": word, "object": obj}).encode() + b"\n"


def bookmark(version):
    return event("BOOKMARK", {"kind": "Pod", "metadata": {"resourceVersion": str(version)}})


def failed(code, message="", retry_after_s=None, reason=""):
    """A Status as the server sends it."""
    details = {} if retry_after_s is None else {"details": {"retryAfterSeconds": retry_after_s}}
    return {"kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason, **details}


# Answers: each is given the request and the server, and is used for one request.


def page(items=(), version=10, more=""):
    return plain({"kind": "List", "metadata": {"resourceVersion": str(version), "continue": more}, "items": items})


def plain(body, status=200, headers=None):
    async def answer(request, server):
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return web.Response(body=raw, status=status, headers=headers, content_type="application/json")

    return answer


def fault(code, message="", retry_after=None, reason=""):
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return plain(failed(code, message, reason=reason), code, headers)


def stream(*lines, then="hang"):
    """Watch lines, then: hang (alive and silent), end, or reset (the connection is cut in mid-stream)."""

    async def answer(request, server):
        response = web.StreamResponse()
        await response.prepare(request)
        for line in lines:
            await response.write(line)
        if then == "hang":
            await server.closing.wait()
        if then == "reset":
            request.transport.abort()
        return response

    return answer


def broken_off(status, body=b'{"kind": "Status", "reason": "Why"'):
    """An answer whose body ends before its announced length."""

    async def answer(request, server):
        response = web.StreamResponse(status=status, headers={"Content-Length": str(len(body) + 10)})
        await response.prepare(request)
        await response.write(body)
        request.transport.close()
        return response

    return answer


def slammed():
    """The connection is closed before a word is said."""

    async def answer(request, server):
        request.transport.abort()
        return web.Response()

    return answer


def mute():
    """The connection is taken and nothing is ever said."""

    async def answer(request, server):
        await server.closing.wait()
        return web.Response()

    return answer


class Script:
    """An API server that gives prepared answers, the last one again and again, and writes down what it was asked."""

    def __init__(self):
        self.lists, self.watches, self.others = [page()], [stream()], [plain({})]
        self.asked, self.closing, self._news, self.url = [], asyncio.Event(), asyncio.Event(), ""

    async def answer(self, request):
        watching = "watch" in request.query
        kind = "watch" if watching else "list" if request.method == "GET" else request.method
        self.asked.append(Asked(kind, request, await request.read()))
        self._news.set()
        answers = self.watches if watching else self.lists if request.method == "GET" else self.others
        return await (answers.pop(0) if len(answers) > 1 else answers[0])(request, self)

    def of(self, kind):
        return [request for request in self.asked if request.kind == kind]

    async def until(self, kind, number):
        """Wait until so many requests of that kind came. Returns the last of them."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.of(kind)) < number:
                self._news.clear()
                await self._news.wait()
        return self.of(kind)[number - 1]


class Asked:
    """One request, kept after its connection is gone."""

    def __init__(self, kind, request, body):
        self.kind, self.path, self.query, self.body = kind, request.path, dict(request.query), body
        self.method, self.headers = request.method, dict(request.headers)


@asynccontextmanager
async def scripted(ssl_context=None):
    """A Script served on a free loopback port."""
    script = Script()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", script.answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=ssl_context)
    await site.start()
    host, port = runner.addresses[0][:2]
    script.url = f"{'https' if ssl_context else 'http'}://{host}:{port}"
    try:
        yield script
    finally:
        script.closing.set()
        await runner.cleanup()


def kubeconfig(folder, url, token="first", ca=None):
    """A kubeconfig whose token lies in a file beside it. Returns its path."""
    (folder / "token").write_text(token)
    cluster = {"server": url, **({"certificate-authority": str(ca)} if ca else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster}],
        "users": [{"name": "u", "user": {"tokenFile": str(folder / "token")}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(config))
    return str(path)


@asynccontextmanager
async def connected(folder, **more):
    """A scripted server and a real Client on it."""
    async with scripted() as script, await Client.open(kubeconfig(folder, script.url), **more) as client:
        yield script, client


@asynccontextmanager
async def running(coroutine):
    """A task for as long as the block lasts. Its own error ends the test."""
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

"""Support for tests of the HTTP handlers: a scripted extender, bodies as Go writes them, callers who break rules."""

import asyncio
import io
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import aiohttp

from turnout.kube.server.http_connection import ConnectionLimits
from turnout.scheduler_ext.model import Answer, EventReason
from turnout.scheduler_ext.server.metrics import Metrics
from turnout.scheduler_ext.server.ports import Listen, Listeners
from turnout.topology.model import Refusal

HEADERS = {"Content-Type": "application/json"}


@dataclass
class Scripted:
    """An extender that keeps the first two nodes, prefers the first, and fails on demand."""

    error: Exception | None = None
    why_unready: str | None = None
    asked: list = field(default_factory=list)

    def _note(self, *what):
        self.asked.append(what)
        if self.error:
            raise self.error

    def filter(self, pod, names):
        self._note("filter", pod.metadata.name, tuple(names))
        return Answer(names[:2], Refusal(EventReason.NO_ROOM, "full"), None)

    def prioritize(self, pod, names):
        self._note("prioritize", pod.metadata.name, tuple(names))
        return [(names[0], 10)] if names else []

    def preempt(self, pod, victims):
        self._note("preempt", pod.metadata.name, tuple(victims))
        return dict(list(victims.items())[:1])

    def refusal_of_pod(self, pod):
        self._note("refusal_of_pod", pod.metadata.name)
        return Answer()

    def refusal_of_gang(self, namespace, name):
        self._note("refusal_of_gang", namespace, name)
        return Answer()

    def gates(self, review):
        self._note("gates", review.namespace)
        return True

    def unready_reason(self):
        return self.why_unready

    def describe(self):
        return {"gangs": ["bert"]}


def body(names=("a", "b", "c"), secret=""):
    """ExtenderArgs as kube-scheduler posts them with nodeCacheCapable true."""
    env = [{"name": "TOKEN", "value": secret}] if secret else []
    pod = {"metadata": {"name": "bert-0", "uid": "u"}, "spec": {"containers": [{"name": "c", "env": env}]}}
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}, separators=(",", ":")).encode()


def preempt_body():
    """ExtenderPreemptionArgs with nodeCacheCapable true."""
    victims = {node: {"Pods": [{"UID": f"{node}-1"}], "NumPDBViolations": 0} for node in ("a", "b")}
    pod = {"metadata": {"name": "bert-0"}}
    return json.dumps({"Pod": pod, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}).encode()


@dataclass
class OpenListeners:
    """Open listeners, somebody to call it, and what it counted."""

    listeners: Listeners
    session: aiohttp.ClientSession
    metrics: Metrics
    extender: Scripted

    async def post(self, path, data, **more):
        """Status and JSON of one call."""
        data = io.BytesIO(data) if isinstance(data, bytes) and data else data  # aiohttp warns of large bytes
        async with self.session.post(f"http://127.0.0.1:{self.listeners.port}/{path}", data=data, **more) as answer:
            return answer.status, json.loads(await answer.read())

    async def get(self, path, **more):
        """Status and text of one page of the plain port."""
        async with self.session.get(f"http://127.0.0.1:{self.listeners.health_port}{path}", **more) as answer:
            return answer.status, await answer.text()

    def counted(self, name, **labels):
        """A sample's value; 0 if there is none."""
        return self.metrics.registry.get_sample_value(name, labels) or 0


@asynccontextmanager
async def opened(extender=None, **limits):
    """An extender's listeners on free loopback ports."""
    extender, metrics = extender or Scripted(), Metrics()
    listeners = Listeners(extender, metrics, Listen(port=0, health_port=0), ConnectionLimits(**limits))
    async with listeners, aiohttp.ClientSession(headers=HEADERS) as session:
        yield OpenListeners(listeners, session, metrics, extender)


@asynccontextmanager
async def raw(port, own="127.0.0.1"):
    """A bare connection. own: the address that it comes from."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(own, 0))
    try:
        yield reader, writer
    finally:
        writer.close()


def head(length, path="/filter", *more):
    """A request's head."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {length}", *more]
    return "\r\n".join([*lines, "", ""]).encode()


async def rest(reader, limit_s=5.0):
    """All that still comes until the server ends the connection; a reset is an end."""
    async with asyncio.timeout(limit_s):
        try:
            return await reader.read()
        except ConnectionError:
            return b""


async def one_answer(reader, limit_s=5.0):
    """Status line, headers and body of one answer with a length."""
    async with asyncio.timeout(limit_s):
        top = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(top.partition("content-length: ")[2].partition("\r\n")[0])
        return top, await reader.readexactly(length)

"""Make the same calls to the embedded API and to a real kube-apiserver, and compare their answers.

A story is an async function that makes calls on one side. It runs twice, once on each. Both transcripts must be equal
except for what no two servers share: uids, versions, times, and the words of a refusal.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import aiohttp

from turnout.kube.client.connections import Connections

JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
PATCH = "application/json-patch+json"

_OWN = {"uid", "resourceVersion", "creationTimestamp", "selfLink", "managedFields", "continue"}
_OWN |= {"deletionTimestamp", "lastTransitionTime", "lastProbeTime", "lastHeartbeatTime", "time", "controller-uid"}
_OWN |= {"batch.kubernetes.io/controller-uid", "remainingItemCount"}
PATIENCE_S = 15.0


class Side:
    """One of the two servers, asked in a namespace of its own. `transcript`: of all requests."""

    def __init__(self, session, url, namespace):
        self.session, self.url, self.namespace = session, url, namespace
        self.transcript = []

    def path(self, plural, name="", part="", group=""):
        """The path of a namespaced resource."""
        start = f"/apis/{group}" if group else "/api/v1"
        return "/".join(filter(None, (f"{start}/namespaces/{self.namespace}/{plural}", name, part)))

    async def ask(self, method, path, body=None, kind=JSON, **query):
        """Make one call and note it; (code, body)."""
        code, answer = await self.peek(method, path, body, kind, **query)
        self.transcript.append((method, self._plain(path), code, self.common(answer)))
        return code, answer

    async def peek(self, method, path, body=None, kind=JSON, **query):
        """Make one call that is not part of the transcript."""
        sent = None if body is None else json.dumps(body)
        headers = {"Content-Type": kind, "User-Agent": "conformance/1"}
        async with self.session.request(method, self.url + path, data=sent, headers=headers, params=query) as response:
            text = await response.text()
        return response.status, json.loads(text) if text.startswith(("{", "[")) else text

    async def until(self, path, condition, within_s=PATIENCE_S):
        """Ask again and again until `seen(code, body)`, and note that answer."""
        async with asyncio.timeout(within_s):
            while True:
                code, answer = await self.peek("GET", path)
                if condition(code, answer):
                    self.transcript.append(("UNTIL", self._plain(path), code, self.common(answer)))
                    return answer
                await asyncio.sleep(0.05)

    async def watch(self, path, lines, do=None, **query):
        """The first `lines` events of a watch, noted; `do` is called once it is open."""
        events = []
        async with asyncio.timeout(PATIENCE_S):
            async with self.session.get(self.url + path, params={"watch": "1", **query}) as response:
                if response.status != 200:
                    self.transcript.append(
                        ("WATCH", self._plain(path), response.status, self.common(json.loads(await response.text())))
                    )
                    return []
                if do is not None:
                    await do()
                async for line in response.content:
                    events.append(json.loads(line))
                    if len(events) == lines:
                        response.connection.transport.abort()
                        break
        shown = [(event["type"], self.common(event["object"])) for event in events]
        self.transcript.append(("WATCH", self._plain(path), 200, shown))
        return events

    def common(self, value):
        """Return the part of an answer in which both servers must agree."""
        if isinstance(value, dict):
            if value.get("kind") == "Status" and value.get("status") == "Failure":
                return {key: value.get(key) for key in ("kind", "code", "reason")}
            if value.get("kind") == "Status":
                return {"kind": "Status", "status": value.get("status")}
            return {key: self.common(each) for key, each in sorted(value.items()) if key not in _OWN}
        if isinstance(value, list):
            return [self.common(each) for each in value]
        return self._plain(value) if isinstance(value, str) else value

    def _plain(self, text):
        return text.replace(self.namespace, "NS")


def differences(mine, real, path=""):
    """Yield where two answers differ, as `path: embedded ..., real ...`."""
    if isinstance(mine, dict) and isinstance(real, dict):
        for key in sorted(mine.keys() | real.keys()):
            yield from differences(mine.get(key, "absent"), real.get(key, "absent"), f"{path}.{key}")
    elif isinstance(mine, list | tuple) and isinstance(real, list | tuple) and len(mine) == len(real):
        for at, (one, other) in enumerate(zip(mine, real, strict=True)):
            yield from differences(one, other, f"{path}[{at}]")
    elif mine != real:
        yield f"  {path}: embedded {mine!r}, real {real!r}"


class Both:
    """The two servers together."""

    def __init__(self, embedded, real):
        self.sides = {"embedded": embedded, "real": real}

    async def agree(self, story):
        """Tell a story on both, and compare every answer, one by one."""
        for side in self.sides.values():
            await story(side)
        ours, theirs = (self.sides[name].transcript for name in ("embedded", "real"))
        for at, (mine, real) in enumerate(zip(ours, theirs, strict=False)):
            faults = list(differences(mine, real))
            assert not faults, f"answer {at + 1} of {len(theirs)}, of {real[0]} {real[1]}:\n" + "\n".join(faults)
        assert len(ours) == len(theirs)


@asynccontextmanager
async def opened(url, namespace, trust=None, **session):
    """A side with a fresh namespace. trust: in whose certificates."""
    async with (
        Connections() as connections,
        aiohttp.ClientSession(connector=connector(connections, trust), **session) as client,
    ):
        side = Side(client, url, namespace)
        code, answer = await side.peek("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        assert code == 201, answer
        yield side


def connector(connections, trust):
    """A connection a request: nothing that one has left behind meets the next."""
    return aiohttp.TCPConnector(ssl=trust or True, force_close=True, socket_factory=connections)


def pod(name, **more):
    """A small pod."""
    spec = {"containers": [{"name": "main", "image": "registry.example.com/a:1"}], **more.pop("spec", {})}
    return {"metadata": {"name": name, **more}, "spec": spec}


def config_map(name, data=None, **more):
    """A ConfigMap: the plainest object there is."""
    return {"metadata": {"name": name, **more}, "data": data or {"k": "v"}}

"""Talk to the API server over HTTP or in the same process, and to the extender as kube-scheduler does."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

import aiohttp
import msgspec

from turnout.simulator.api import verbs
from turnout.simulator.api.garbage_collector import collect
from turnout.simulator.api.model import ApiRefusal, Unserved
from turnout.simulator.api.objects import event_for
from turnout.simulator.api.store import Store
from turnout.simulator.api.verbs import Call, handle, selection_of
from turnout.simulator.cluster.scheduler import ExtenderCall, ExtenderReply, ExtenderVerb


class ApiError(Exception):
    """The answer of an API server that has refused a request, as a client sees it."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        """Take the HTTP status, the reason of the Status, and its message."""
        super().__init__(f"{code} {reason}: {message}")
        self.code, self.reason = code, reason


class WatchedObject:
    """An object that a list or a watch has shown: `raw` is its JSON, `obj` the decoded values, which no caller may
    change.
    """

    __slots__ = ("_obj", "raw")

    def __init__(self, raw: bytes, obj: dict[str, Any] | None = None) -> None:
        self.raw, self._obj = raw, obj

    @property
    def obj(self) -> dict[str, Any]:
        """The object as values, decoded when first asked for. A store in the same process gives its own values."""
        if self._obj is None:
            self._obj = msgspec.json.decode(self.raw)
        return self._obj


class ApiClient(Protocol):
    """The API as the parts of the local cluster reach it: over HTTP, or in the same process."""

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Send one request and return its JSON.

        path: with its query. body: JSON values, None for none. content_type: of the body. Raises ApiError if the
        request is refused. Over HTTP also for an answer that is not JSON, such as the page of a proxy, and
        aiohttp.ClientError or TimeoutError without an answer.
        """

    def changes(self, path: str) -> AsyncIterator[tuple[str, WatchedObject]]:
        """Yield every object of a list, then SYNCED, then every change, without end, each as (event, object).

        The event is ADDED, MODIFIED, DELETED, or SYNCED with an empty object. After SYNCED a list may come again, and
        SYNCED with it. path: of a list, with its selectors. Each implementation says what it raises.
        """


class HttpClient:
    """Calls an API server over HTTP. Raises ApiError for a refusal, aiohttp.ClientError for no answer."""

    def __init__(
        self, session: aiohttp.ClientSession, url: str, token: str = "", trust: ssl.SSLContext | None = None
    ) -> None:
        """Take a session and the server's URL. token: the caller's credentials, "" for none.

        trust: the CA of a server with TLS; None for the CAs of this machine.
        """
        self._session, self._url = session, url
        self._trust = trust if trust is not None else True
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Send one request and return its JSON. Raises the errors of ApiClient.call.

        path: with its query. body: JSON values, None for none. content_type: of the body.
        """
        sent = None if body is None else msgspec.json.encode(body)
        headers = {**self._headers, "Content-Type": content_type} if sent is not None else self._headers
        async with self._session.request(
            method, self._url + path, data=sent, headers=headers, ssl=self._trust
        ) as response:
            body_bytes = await response.read()
            try:
                answer = msgspec.json.decode(body_bytes, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise _not_json(response, body_bytes, error) from error
            if response.status >= 400:
                raise ApiError(response.status, answer.get("reason", ""), answer.get("message", ""))
            return answer

    def _open_watch(self, path: str, version: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Return an async context manager that yields the response of a watch, whatever its status: the caller checks
        it.

        The watch has no time limit, and asks for bookmarks. path: of a list, with its selectors. version: the
        resourceVersion to start from.
        """
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        timeout = aiohttp.ClientTimeout(total=None, sock_read=None)
        url = self._url + path
        return self._session.get(url, params=query, timeout=timeout, headers=self._headers, ssl=self._trust)

    async def changes(self, path: str) -> AsyncIterator[tuple[str, WatchedObject]]:
        """Yield every object of a list, then SYNCED, then every change, without end, each as (event, object).

        The event is ADDED, MODIFIED, DELETED, or SYNCED with an empty object. A watch that ends continues from its last
        version. If that version is refused (410), or the watch has sent an ERROR, a new list follows, and a DELETED
        with metadata only for every object that is no longer listed. path: of a list, with its selectors. Raises the
        errors of ApiClient.call, if the list or the watch is refused (but for 410) or the connection breaks.
        """
        version = ""
        known: dict[str, dict[str, Any]] = {}  # uid -> metadata enough to name it
        while True:
            if not version:
                listed = await self.call("GET", path)
                version = listed["metadata"]["resourceVersion"]
                listed_uids = {item["metadata"]["uid"] for item in listed["items"]}
                for uid in known.keys() - listed_uids:
                    yield "DELETED", WatchedObject(msgspec.json.encode({"metadata": known[uid]}))
                known = {item["metadata"]["uid"]: _identity_of(item["metadata"]) for item in listed["items"]}
                for item in listed["items"]:
                    yield "ADDED", WatchedObject(msgspec.json.encode(item), item)
                yield "SYNCED", WatchedObject(b"{}")
            async with self._open_watch(path, version) as response:
                if response.status == 410:
                    version = ""
                    continue
                if response.status != 200:
                    raise ApiError(response.status, "", await response.text())
                async for line in response.content:
                    try:
                        event = msgspec.json.decode(line, type=_Event)
                        versioned = msgspec.json.decode(event.object, type=_Versioned)
                    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                        raise _not_json(response, line, error) from error
                    if event.type == "ERROR":
                        version = ""
                        break
                    version = versioned.metadata.get("resourceVersion", version)
                    if event.type != "BOOKMARK":
                        known[versioned.metadata["uid"]] = _identity_of(versioned.metadata)
                        if event.type == "DELETED":
                            del known[versioned.metadata["uid"]]
                        yield event.type, WatchedObject(bytes(event.object))


_MAX_QUOTED_BYTES = 200  # of an answer that is not JSON


def _not_json(response: aiohttp.ClientResponse, text: bytes, error: Exception) -> ApiError:
    """Return the error for an answer that is not what an API server sends, with the answer's beginning."""
    return ApiError(response.status, "", f"{error}: {text[:_MAX_QUOTED_BYTES].decode(errors='replace')}")


def _identity_of(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the name, namespace and uid of metadata, as far as present."""
    return {key: metadata[key] for key in ("name", "namespace", "uid") if key in metadata}


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct):
    metadata: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class ExtenderRequest:
    """One call of the extender, for statistics."""

    verb: ExtenderVerb
    nodes: int  # how many nodes it named
    took_s: float  # until the reply, in seconds
    failed: str  # why there is no usable reply, "" for none


class ExtenderClient:
    """Calls a scheduler extender over HTTP as kube-scheduler does with nodeCacheCapable: names only."""

    def __init__(self, session: aiohttp.ClientSession, url: str, timeout_s: float = 5.0) -> None:
        self._session, self._url = session, url.rstrip("/")
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self.requests: list[ExtenderRequest] = []

    async def ask(self, pod: Any, question: ExtenderCall) -> ExtenderReply:
        """Send one call to the extender, and return its reply. Never raises: `failed` of the reply says why.

        pod: the whole object. question: the verb and the names of the nodes. The call is added to `requests`.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        reply = await self._ask(pod, question)
        self.requests.append(ExtenderRequest(question.verb, len(question.names), loop.time() - began, reply.failed))
        return reply

    async def _ask(self, pod: Any, question: ExtenderCall) -> ExtenderReply:
        """Send one call to the extender, and return its reply.

        Never raises: after an error, or a status other than 200, `failed` of the reply says why.
        """
        body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": question.names})
        url = f"{self._url}/{question.verb.value}"
        try:
            async with self._session.post(
                url, data=body, headers={"Content-Type": "application/json"}, timeout=self._timeout
            ) as response:
                raw = await response.read()
                if response.status != 200:
                    return ExtenderReply(failed=f"extender answered {response.status} to {question.verb.value}")
            return read_reply(question.verb, raw)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            return ExtenderReply(
                failed=f"extender did not answer {question.verb.value}: {type(error).__name__} {error}"
            )


class _FilterResult(msgspec.Struct, rename="pascal"):
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str = ""


class _HostPriority(msgspec.Struct, rename="pascal"):
    host: str
    score: int


def read_reply(verb: ExtenderVerb, raw: bytes) -> ExtenderReply:
    """Return the extender's answer to a call of this verb. Raises ValueError if it is not JSON of extender/v1.

    raw: the body of the reply. Of a filter's reply only NodeNames name feasible nodes, with this spelling: a reply
    without them refuses every node. Its Error becomes `failed`. For kube-scheduler the case of keys does not matter,
    and a null for a prioritize is an empty list; here it is a ValueError.
    """
    try:
        if verb is ExtenderVerb.PRIORITIZE:
            return ExtenderReply(points={p.host: p.score for p in msgspec.json.decode(raw, type=list[_HostPriority])})
        result = msgspec.json.decode(raw, type=_FilterResult)
    except RecursionError as error:
        raise ValueError(f"the reply is nested too deep: {error}") from error
    refused = {**(result.failed_nodes or {}), **(result.failed_and_unresolvable_nodes or {})}
    return ExtenderReply(feasible_nodes=tuple(result.node_names or ()), refused=refused, failed=result.error)


class DirectClient:
    """A client of a store in the same process."""

    def __init__(self, store: Store, manager: str = "turnout-local") -> None:
        """Take the store. manager: the name of the writer, for managedFields."""
        self._store, self._manager = store, manager

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Carry out one request and return its JSON. Garbage collection runs soon afterwards.

        path: with its query. body: JSON values, None for none. content_type: of the body. Raises ApiError if the
        store refuses the request, with 404 for a group that is not served.
        """
        await asyncio.sleep(0)  # as any call does: others get their turn
        url = urlsplit(path)
        try:
            target = verbs.target(self._store.catalogue, url.path)
            answer = handle(
                self._store, Call(method, target, dict(parse_qsl(url.query)), body, content_type, self._manager)
            )
        except ApiRefusal as refusal:
            raise ApiError(refusal.code, refusal.reason, refusal.message) from refusal
        except Unserved as error:
            raise ApiError(404, "NotFound", f"nobody serves {url.path}") from error
        finally:
            if self._store.objects.owner_index.to_check:
                asyncio.get_running_loop().call_soon(collect, self._store)
        return msgspec.json.decode(answer.raw)

    async def changes(self, path: str) -> AsyncIterator[tuple[str, WatchedObject]]:
        """Yield every object of a list, then SYNCED, then every change, without end, each as (event, object).

        The event is ADDED, MODIFIED, DELETED, or SYNCED with an empty object. path: of a list, with its selectors.
        Raises ApiRefusal (not ApiError) if the path or a selector is refused, or if the reader is so slow that changes
        were forgotten, and Unserved for a group that is not served.
        """
        url = urlsplit(path)
        target = verbs.target(self._store.catalogue, url.path)
        selection = selection_of(target, dict(parse_qsl(url.query)))
        journal = self._store.objects.journal(target.kind)
        position = journal.end()
        for stored in self._store.objects.find(target.kind, "", selection):
            yield "ADDED", WatchedObject(stored.raw, stored.obj)
        yield "SYNCED", WatchedObject(b"{}")
        changed = asyncio.Event()
        journal.wake_callbacks.add(changed.set)
        try:
            while True:
                changed.clear()
                for change in journal.since(position):
                    position += 1
                    found = event_for(change, selection)
                    if found is not None:
                        yield found[0], WatchedObject(found[1].raw, found[1].obj)
                if not changed.is_set():
                    await changed.wait()
        finally:
            journal.wake_callbacks.discard(changed.set)

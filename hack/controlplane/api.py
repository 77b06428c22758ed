"""An API client for tests and benchmarks: plain JSON over aiohttp, many requests at the same time.

The programs of Turnout have their own client, kube/client/api_client.py.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp

from hack.controlplane.errors import ApiError
from turnout.kube.client.connections import Connections

AT_ONCE = 64
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
Object = dict[str, Any]
Found = TypeVar("Found")


class Api:
    """One account at one API server. Use with `async with`."""

    def __init__(self, url: str, ca: Path, token: str) -> None:
        self.url = url
        self._ca, self._headers = ca, {"Authorization": f"Bearer {token}"}

    async def __aenter__(self) -> Self:
        trust = ssl.create_default_context(cafile=str(self._ca))
        self._connections = Connections()
        maximum = AT_ONCE + 32  # for watches beside the load
        connector = aiohttp.TCPConnector(limit=maximum, ssl=trust, socket_factory=self._connections)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._session.close()
        await self._connections.close_all()

    async def call(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Send one request, and return the decoded answer; text that is not JSON is returned as it is.

        path: begins with /api or /apis and may have a query. body: sent as JSON, None for none. content_type: of the
        body. Raises ApiError for a status of 300 or more, aiohttp's ClientError if the connection fails, and
        TimeoutError after 60 s. The other methods that send requests raise the same.
        """
        content = None if body is None else json.dumps(body).encode()
        async with asyncio.timeout(60):
            async with self._session.request(
                method, self.url + path, data=content, headers={"Content-Type": content_type}
            ) as answer:
                text = await answer.text()
                if answer.status >= 300:
                    raise ApiError(method, path, answer.status, text)
        return json.loads(text) if text.startswith(("{", "[")) else text

    async def get(self, path: str) -> Any:
        """Return the object or the list at `path`. Raises as `call` does."""
        return await self.call("GET", path)

    async def create(self, body: Object, namespace: str = "default", query: str = "") -> Any:
        """Create any object, and return the answer. namespace: used if the object names none. query: beginning with ?.

        Raises ApiError if the object exists or is refused. body: the object, with apiVersion, kind and metadata.name.
        """
        return await self.call("POST", collection(body, namespace) + query, body)

    async def create_all(self, bodies: Iterable[Object], namespace: str = "default") -> list[Any]:
        """Create objects at the same time, started in the given order; return the answers in this order.

        Raises an ExceptionGroup if a request fails; some of the other objects may be missing then. namespace: used for
        objects that name none.
        """
        return await self._call_for_all(lambda body: self.create(body, namespace), bodies)

    async def apply(self, body: Object, namespace: str = "default", query: str = "") -> Any:
        """Create or change an object by server-side apply with force, as field manager turnout-test. Return the answer.

        namespace: used if the object names none. query: further parameters, beginning with &. body: the object, with
        apiVersion, kind and metadata.name.
        """
        name = body["metadata"]["name"]
        path = f"{collection(body, namespace)}/{name}?fieldManager=turnout-test&force=true{query}"
        return await self.call("PATCH", path, body, APPLY)

    async def patch(self, path: str, body: Object) -> Any:
        """Change the object at `path` by the merge patch `body`; return the new object. Raises as `call` does."""
        return await self.call("PATCH", path, body, MERGE)

    async def delete(self, path: str) -> Any:
        """Delete the object or the collection at `path`; return the answer. Raises as `call` does."""
        return await self.call("DELETE", path)

    async def pods(self, namespace: str = "default", selector: str = "") -> list[Object]:
        """Return the pods of a namespace. selector: label selector, "" for all. Raises as `call` does."""
        query = f"?labelSelector={selector}" if selector else ""
        listed = await self.get(f"/api/v1/namespaces/{namespace}/pods{query}")
        return list(listed["items"])

    async def watch(self, path: str) -> AsyncIterator[list[Object]]:
        """Yield all objects of a collection now and after each change, without end, in any order.

        After the end of a watch it lists and watches again. path: of the collection, with or without a query. Raises
        the errors of `call` if the list fails, and aiohttp's ClientError if the watch's connection fails.
        """
        query = "&" if "?" in path else "?"
        while True:
            listed = await self.get(path)
            items = {item["metadata"]["uid"]: item for item in listed["items"]}
            yield list(items.values())
            version = listed["metadata"]["resourceVersion"]
            address = f"{self.url}{path}{query}watch=1&resourceVersion={version}"
            async with self._session.get(address, read_bufsize=1 << 22) as answer:
                try:
                    async for line in answer.content:
                        event = json.loads(line)
                        if event["type"] == "ERROR":
                            break
                        uid = event["object"]["metadata"]["uid"]
                        items.pop(uid, None)
                        if event["type"] != "DELETED":
                            items[uid] = event["object"]
                        yield list(items.values())
                finally:
                    _hang_up(answer)

    async def events(self, path: str) -> AsyncGenerator[tuple[bytes, float]]:
        """Yield each line of one watch with the time when it arrived (monotonic seconds), until the server ends it.

        path: with the query of the watch. Raises ApiError if the server refuses it.
        """
        buffer = b""
        async with self._session.get(self.url + path, read_bufsize=1 << 22) as answer:
            if answer.status != 200:
                raise ApiError("GET", path, answer.status, await answer.text())
            try:
                async for chunk in answer.content.iter_any():
                    *lines, buffer = (buffer + chunk).split(b"\n")
                    now_s = time.monotonic()
                    for line in lines:
                        yield line, now_s
            finally:
                _hang_up(answer)

    async def await_served(self, path: str, within_s: float = 60.0) -> None:
        """Wait until a kind that was just defined can be watched. path: of its collection.

        Raises TimeoutError after `within_s` seconds.
        """
        async with asyncio.timeout(within_s):
            while True:
                with suppress(ApiError):
                    await self.get(f"{path}?watch=1&resourceVersion=0&timeoutSeconds=1")
                    return
                await asyncio.sleep(0.05)

    async def until(self, path: str, probe: Callable[[list[Object]], Found], within_s: float = 90.0) -> Found:
        """Watch a collection until `probe` returns a true result for all of its objects together; return that result.

        path: of the collection. probe: gets all objects, in any order. Raises TimeoutError after `within_s` seconds,
        with a line on each of the first 40 objects, and the errors of `watch`.
        """
        last: list[Object] = []
        changes = self.watch(path)
        try:
            async with asyncio.timeout(within_s):
                async for last in changes:
                    answer = probe(last)
                    if answer:
                        return answer
        except TimeoutError as error:
            raise TimeoutError(f"{path}: not seen within {within_s} s; last:\n{_brief(last)}") from error
        finally:
            await changes.aclose()  # type: ignore[attr-defined]
        raise AssertionError("a watch does not end")

    async def _call_for_all(self, do: Callable[[Object], Awaitable[Any]], bodies: Iterable[Object]) -> list[Any]:
        """Call `do` with each body, at most AT_ONCE at the same time; return the results in the order of `bodies`.

        Raises an ExceptionGroup if a call fails.
        """
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(body: Object) -> Any:
            async with gate:
                return await do(body)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(body)) for body in bodies]
        return [task.result() for task in tasks]


CLUSTER_SCOPED = frozenset(
    {
        "Node",
        "Namespace",
        "PersistentVolume",
        "ClusterRole",
        "ClusterRoleBinding",
        "PriorityClass",
        "CustomResourceDefinition",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
        "MutatingAdmissionPolicy",
        "MutatingAdmissionPolicyBinding",
        "MutatingWebhookConfiguration",
        "ValidatingWebhookConfiguration",
        "RuntimeClass",
        "StorageClass",
    }
)


def _hang_up(answer: aiohttp.ClientResponse) -> None:
    """Abort the connection of an unfinished response. A clean TLS shutdown would still run when the test's event
    loop is closed.
    """
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()


def collection(body: Mapping[str, Any], namespace: str = "default") -> str:
    """Return the API path of the collection of an object's kind, without a namespace for the kinds in CLUSTER_SCOPED.

    Any other kind counts as namespaced, also a cluster-scoped kind that is missing in CLUSTER_SCOPED, such as Volcano's
    Queue. The object's own namespace overrides `namespace`. body: an object with apiVersion, kind and metadata.
    """
    version, kind = body["apiVersion"], body["kind"]
    base = f"/apis/{version}" if "/" in version else f"/api/{version}"
    place = "" if kind in CLUSTER_SCOPED else f"/namespaces/{body['metadata'].get('namespace') or namespace}"
    return f"{base}{place}/{plural(kind)}"


def plural(kind: str) -> str:
    """Return the resource name of a kind, as Kubernetes forms it: PodGroup -> podgroups, Endpoints -> endpoints."""
    word = kind.lower()
    if word == "endpoints":
        return word
    if word.endswith(("s", "x", "ch")):
        return f"{word}es"
    return f"{word[:-1]}ies" if word.endswith("y") and word[-2] not in "aeiou" else f"{word}s"


def _brief(items: list[Object]) -> str:
    """Return a line for each of the first 40 objects: name, node, phase and conditions."""
    rows = []
    for item in items[:40]:
        status = item.get("status", {})
        conditions = [
            f"{each['type']}={each['status']} {each.get('message', '')}" for each in status.get("conditions") or ()
        ]
        where = item.get("spec", {}).get("nodeName", "-")
        rows.append(f"  {item['metadata']['name']} node={where} phase={status.get('phase')} {'; '.join(conditions)}")
    return "\n".join(rows) or "  nothing at all"

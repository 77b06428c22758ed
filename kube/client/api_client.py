"""The one client of the API server: raw bytes in and out, a deadline on every call, typed errors.

A transport carries the bytes (transport.py). What an answer means, and when to try again, is left to the caller.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from turnout.kube.client.clock import RealClock
from turnout.kube.client.line_splitter import MAX_LINE_BYTES, split
from turnout.kube.client.rate_limiter import Pace
from turnout.kube.client.transport import Answer, NoCredentials, Params, Request, Transport
from turnout.kube.errors import BadAnswer, BadKubeconfig, NoCluster, Rejected, Unauthorised, Unreachable
from turnout.kube.status import answered

Body = bytes | dict[str, Any] | list[Any]

CALL_S = 30.0  # the longest that any call but a watch may take, etcd's slow days included
MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
_LIBRARY = "kubernetes"  # what the extra brings
_MAX_ERROR_BYTES = 65_536
_DATES = 31  # of the last answers


class _ListMeta(msgspec.Struct):
    token: str = msgspec.field(name="continue", default="")


class _PageEnd(msgspec.Struct):
    metadata: _ListMeta


_page_end = msgspec.json.Decoder(_PageEnd)


@dataclass(frozen=True, slots=True)
class _Ask:
    """One request as its caller wants it. urgent: it waits neither for room nor for its turn."""

    method: str
    path: str
    params: Params | None
    deadline_s: float
    urgent: bool = False
    body: Body | None = None
    content_type: str = _JSON
    stream: bool = False


class Client:
    """Calls on one API server. Open it with `Client.open`, close it or use it as an async context.

    Every call raises CallError for all but a good answer, and ends by its `deadline_s`, seconds of real time.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        max_in_flight: int = 64,
        qps: float | None = None,
        longest_s: float | None = None,
        as_user: str = "",
    ) -> None:
        """qps: calls a second, None = as the server bears. longest_s: of any call, where that is less than its own.

        A watch and an urgent call (a Lease) wait neither for `max_in_flight` nor for `qps`. as_user: for whom all is
        asked, by the right to impersonate; "" for nobody else.
        """
        self._transport, self._longest_s = transport, longest_s
        self._headers = {"Accept": _JSON, "User-Agent": "turnout"}
        self._headers["Accept-Encoding"] = "identity"  # gzip costs the server more than it saves us
        self._headers |= {"Impersonate-User": as_user} if as_user else {}
        self._ahead_s: deque[float] = deque(maxlen=_DATES)  # by how much the server was ahead of our monotonic clock
        self._dates: deque[tuple[str, float]] = deque(maxlen=_DATES)  # not read yet, with our clock as each came
        self._room = asyncio.Semaphore(max_in_flight)
        self._pace = Pace(RealClock(), qps) if qps else None

    @classmethod
    async def open(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        brief: bool = False,
        max_in_flight: int = 64,
        qps: float | None = None,
        longest_s: float | None = None,
        as_user: str = "",
    ) -> Client:
        """Use the kubeconfig named, else the pod's service account, else the user's own kubeconfig.

        brief: the program ends in a moment, so that a library which only some kubeconfigs need is imported for those
        alone. Raises NoCluster when there is no kubeconfig, BadKubeconfig when none can be used, and
        ModuleNotFoundError where the extra with the Kubernetes client is not installed.
        """
        if find_spec(_LIBRARY) is None:  # before anything is said of a kubeconfig: without the extra none is of use
            raise ModuleNotFoundError(f"No module named {_LIBRARY!r}", name=_LIBRARY)
        find_kubeconfig(kubeconfig)
        try:
            transport = (_brief(kubeconfig, context) if brief else None) or await _library(kubeconfig, context)
        except Exception as error:  # the loader lets through whatever YAML, TLS and file reading raise
            raise BadKubeconfig(f"{kubeconfig or 'in-cluster or default kubeconfig'}: {error}") from error
        return cls(transport, max_in_flight=max_in_flight, qps=qps, longest_s=longest_s, as_user=as_user)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def server_ahead_s(self) -> float | None:
        """Return the server's time of day less our monotonic clock, in seconds; None before the first answer.

        The value is the median of the last answers: there may be several servers, whose clocks differ.
        """
        while self._dates:
            date, at_s = self._dates.popleft()
            if (told_s := _told_s(date)) is not None:
                self._ahead_s.append(told_s - at_s)
        return sorted(self._ahead_s)[len(self._ahead_s) // 2] if self._ahead_s else None

    async def close(self) -> None:
        """End every connection."""
        await self._transport.close()

    async def get(
        self, path: str, params: Params | None = None, *, urgent: bool = False, deadline_s: float = CALL_S
    ) -> bytes:
        return await self._call(_Ask("GET", path, params, deadline_s, urgent))

    async def pages(
        self, path: str, params: Params | None = None, *, limit: int = 500, deadline_s: float = CALL_S
    ) -> AsyncIterator[bytes]:
        """Each page of a list. limit: items a page, 0 = all in one. Raises Gone if the pages outlived their version."""
        more = ""
        while True:
            asked = {**(params or {}), **({"limit": limit} if limit else {}), **({"continue": more} if more else {})}
            page = await self.get(path, asked, deadline_s=deadline_s)
            yield page
            try:
                more = _page_end.decode(page).metadata.token
            except msgspec.DecodeError as error:
                raise BadAnswer("GET", path, 200, f"not a list: {error}") from error
            if not more:
                return

    async def create(
        self, path: str, body: Body, *, params: Params | None = None, urgent: bool = False, deadline_s: float = CALL_S
    ) -> bytes:
        return await self._call(_Ask("POST", path, params, deadline_s, urgent, body))

    async def patch(
        self,
        path: str,
        body: Body,
        content_type: str = MERGE_PATCH,
        field_manager: str | None = None,
        *,
        params: Params | None = None,
        urgent: bool = False,
        deadline_s: float = CALL_S,
    ) -> bytes:
        asked = {**(params or {}), **({"fieldManager": field_manager} if field_manager else {})}
        return await self._call(_Ask("PATCH", path, asked, deadline_s, urgent, body, content_type))

    async def delete(
        self,
        path: str,
        *,
        uid: str | None = None,
        resource_version: str | None = None,
        grace_s: int | None = None,
        params: Params | None = None,
        deadline_s: float = CALL_S,
    ) -> bytes:
        """Delete, only if the object still has that uid and version where they are given (else Conflict)."""
        only_if = {key: v for key, v in (("uid", uid), ("resourceVersion", resource_version)) if v is not None}
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if only_if:
            options["preconditions"] = only_if
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self._call(_Ask("DELETE", path, params, deadline_s, body=options))

    async def watch(self, path: str, params: Params, *, max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
        """An empty line once the server has taken the watch, then each raw line until it ends. One too long comes cut
        off, hence unreadable. Close it (`contextlib.aclosing`) when leaving early. Silence is for the caller to notice.
        """
        answer = await self._send(_Ask("GET", path, {**params, "watch": True}, CALL_S, stream=True))
        try:
            yield b""
            async for line in split(answer.pieces(), max_line_bytes):
                yield line
        except OSError as error:
            raise Unreachable("GET", path, 0, f"the watch broke: {error!r}") from error
        finally:
            answer.close()  # never back to the pool: an unread rest would be somebody else's answer

    async def stream(self, path: str, params: Params) -> AsyncIterator[bytes]:
        """The pieces of an answer as they come, such as a log that is followed. Close it when leaving early."""
        answer = await self._send(_Ask("GET", path, params, CALL_S, stream=True))
        try:
            async for piece in answer.pieces():
                yield piece
        except OSError as error:
            raise Unreachable("GET", path, 0, f"the answer broke off: {error!r}") from error
        finally:
            answer.close()

    async def _call(self, ask: _Ask) -> bytes:
        if self._longest_s is not None and self._longest_s < ask.deadline_s:
            ask = replace(ask, deadline_s=self._longest_s)
        try:
            async with asyncio.timeout(ask.deadline_s):
                if ask.urgent:
                    return await self._read(ask)
                async with self._room:
                    if self._pace:
                        await self._pace.turn()
                    return await self._read(ask)
        except TimeoutError as error:
            raise Unreachable(ask.method, ask.path, 0, f"no answer within {ask.deadline_s:g} s") from error

    async def _read(self, ask: _Ask) -> bytes:
        answer = await self._send(ask)
        try:
            return await answer.read()
        except OSError as error:
            raise Unreachable(ask.method, ask.path, 0, f"the answer broke off: {error!r}") from error
        finally:
            answer.release()

    async def _send(self, ask: _Ask) -> Answer:
        """Return the answer before its body is read. On 401, read the credentials again and repeat the call once."""
        try:
            return await self._send_once(ask)
        except Unauthorised as refused:
            try:
                changed = await self._transport.reload()
            except Exception as error:  # whatever YAML, TLS and file reading raise
                raise Unauthorised(ask.method, ask.path, 401, f"no fresh credentials: {error}") from refused
            if not changed:
                raise
        return await self._send_once(ask)

    async def _send_once(self, ask: _Ask) -> Answer:
        if isinstance(ask.body, bytes):
            ask = replace(ask, body=_decoded(ask, ask.body))
        headers = self._headers if ask.body is None else {**self._headers, "Content-Type": ask.content_type}
        deadline_s = None if ask.stream else ask.deadline_s
        try:
            async with asyncio.timeout(ask.deadline_s):
                answer = await self._transport.send(
                    Request(ask.method, ask.path, ask.params or {}, headers, ask.body, deadline_s)
                )
                self._dates.append((answer.header("Date"), time.monotonic()))
                if not 200 <= answer.status < 300:
                    await _refuse(ask, answer)
                return answer
        except NoCredentials as error:
            raise Unauthorised(ask.method, ask.path, 0, f"credentials cannot be read: {error}") from error
        except OSError as error:  # TimeoutError is an OSError
            raise Unreachable(ask.method, ask.path, 0, str(error) or repr(error)) from error


def load_library() -> None:
    """Import the Kubernetes library, which takes up to a second of CPU: call it in a thread before `Client.open`.

    Raises ModuleNotFoundError where the extra is not installed.
    """
    import_module("turnout.kube.client.library_transport")


async def _library(kubeconfig: str | None, context: str | None) -> Transport:
    """Return the transport that knows every way to sign in."""
    from turnout.kube.client.library_transport import LibraryTransport

    return await LibraryTransport.open(kubeconfig, context)


def _brief(kubeconfig: str | None, context: str | None) -> Transport | None:
    """Return the transport that imports little; None where the kubeconfig needs the library."""
    from turnout.kube.client.plain_kubeconfig import access_in, path_of, read

    path = path_of(kubeconfig)
    access = None if path is None else access_in(read(path), path.parent, context)
    if access is None:
        return None
    from turnout.kube.client.brief_transport import BriefTransport

    return BriefTransport.open(access)


async def _refuse(ask: _Ask, answer: Answer) -> None:
    """Raise what the server says instead of an answer."""
    body = b""
    try:
        async for piece in answer.pieces():
            body += piece
            if len(body) >= _MAX_ERROR_BYTES:
                break
    finally:
        answer.close()
    raise answered(ask.method, ask.path, answer.status, body[:_MAX_ERROR_BYTES], answer.header("Retry-After"))


def _decoded(ask: _Ask, body: bytes) -> Any:
    """The body as values: the transport encodes JSON itself and takes no ready bytes."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Rejected(ask.method, ask.path, 0, f"our own body is not JSON: {error}") from error


def _told_s(date: str) -> float | None:
    """An HTTP date in seconds since 1970, at the middle of its second; None for what is none."""
    from email.utils import parsedate_to_datetime  # most commands never ask what time it is there

    try:
        return parsedate_to_datetime(date).timestamp() + 0.5
    except (ValueError, TypeError, OverflowError):
        return None


def find_kubeconfig(named: str | None) -> None:
    """Raise NoCluster if no kubeconfig exists where one is looked for, and this process runs in no pod."""
    if named is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return
    paths = named or os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise NoCluster(paths)

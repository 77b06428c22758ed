"""The client of the API server: raw bytes in and out, a deadline for every call, typed errors.

A transport (transport.py) carries the bytes. The caller decides what an answer means and when to retry.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from turnout.kube.client.clock import RealClock
from turnout.kube.client.rate_limiter import RateLimiter
from turnout.kube.client.transport import Params, Request, Response, Transport, UnreadableCredentials
from turnout.kube.errors import BadKubeconfig, NoCluster, Rejected, Unauthorised, Unreachable
from turnout.kube.status import UNREADABLE, decode_answer, error_of_response

MAX_LINE_BYTES = 4 * 2**20  # etcd holds no object over 1.5 MiB; JSON may double it
_LONG_LINE_PREFIX_BYTES = 1024  # of a line above the bound; a truncated line is never a complete JSON value


async def split_lines(chunks: AsyncIterator[bytes], max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
    """Yield each line without its line end. Empty lines are left out.

    chunks: the bytes, cut at any place. A line above `max_line_bytes` is truncated to its first kilobyte. Bytes after
    the last line end are dropped, because the connection broke inside that line.
    """
    line_parts: list[bytes] = []
    line_bytes, is_too_long = 0, False
    async for chunk in chunks:
        first, *other_parts = chunk.split(b"\n")
        line_bytes += len(first)
        if not is_too_long:
            line_parts.append(first)
        if line_bytes > max_line_bytes and not is_too_long:
            line_parts, is_too_long = [b"".join(line_parts)[:_LONG_LINE_PREFIX_BYTES]], True
        if not other_parts:
            continue
        if line := b"".join(line_parts):
            yield line
        for line in other_parts[:-1]:
            if line:
                yield line if len(line) <= max_line_bytes else line[:_LONG_LINE_PREFIX_BYTES]
        line_parts, line_bytes, is_too_long = [other_parts[-1]], len(other_parts[-1]), False


Body = bytes | dict[str, Any] | list[Any]  # encoded JSON, or JSON values

CALL_S = 30.0  # the default deadline of a call, long enough for a slow etcd
MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
_LIBRARY_MODULE = "kubernetes"  # the module that the optional extra installs
_MAX_ERROR_BYTES = 65_536  # of the body of an error that are read
_MAX_DATES = 31  # Date headers of the last answers that are kept
_EXPECTED_CODES = (403, 404, 409, 422, 429)  # counted apart, because an alert treats them differently


class _PageMetadata(msgspec.Struct):
    """The metadata of a page of a list. The token requests the next page; "" on the last page."""

    token: str = msgspec.field(name="continue", default="")


class _PageEnd(msgspec.Struct):
    """A page of a list without its items."""

    metadata: _PageMetadata


_page_end = msgspec.json.Decoder(_PageEnd)


@dataclass(frozen=True, slots=True)
class _Call:
    """One request of a caller."""

    method: str  # the HTTP method
    path: str  # the path of the URL
    params: Params | None  # the parameters of the query
    deadline_s: float  # seconds, > 0
    urgent: bool = False  # waits neither for concurrency nor for the rate limit
    body: Body | None = None  # JSON values or encoded JSON; None for no body
    content_type: str = _JSON  # the media type of the body
    stream: bool = False  # True if the answer may have no end, so that the deadline covers only its head


class ServerClock:
    """The time of the server, by the Date headers of its last answers."""

    def __init__(self) -> None:
        # The server's clock less our monotonic clock, seconds, of the last answers.
        self._ahead_s: deque[float] = deque(maxlen=_MAX_DATES)
        # Date headers that are not parsed yet, each with our clock at its arrival.
        self._unread_dates: deque[tuple[str, float]] = deque(maxlen=_MAX_DATES)

    def note(self, date: str, at_s: float) -> None:
        """Note the Date header of an answer. at_s: when it arrived, by our monotonic clock. It is parsed later."""
        self._unread_dates.append((date, at_s))

    def ahead_s(self) -> float | None:
        """Return the server's time since 1970 less our monotonic clock, in seconds.

        None before the first answer with a date. The value is the median of the last answers, because several servers
        may answer and their clocks differ.
        """
        while self._unread_dates:
            date, at_s = self._unread_dates.popleft()
            if (server_s := _seconds_of_date(date)) is not None:
                self._ahead_s.append(server_s - at_s)
        return sorted(self._ahead_s)[len(self._ahead_s) // 2] if self._ahead_s else None


class RequestSender:
    """A sender of requests within limits, which repeats a request once with fresh credentials.

    counts: requests by verb of HTTP in lower case and by code; "none" for requests without an answer. server_clock: by
    the answers so far.
    """

    def __init__(
        self, transport: Transport, max_in_flight: int, qps: float | None, max_call_s: float | None, as_user: str
    ) -> None:
        """Make a sender over a transport. The other arguments: as in `Client`."""
        self._transport, self._max_call_s = transport, max_call_s
        self._headers = {"Accept": _JSON, "User-Agent": "turnout"}
        self._headers["Accept-Encoding"] = "identity"  # gzip costs the server more than it saves us
        self._headers |= {"Impersonate-User": as_user} if as_user else {}
        self.counts: Counter[tuple[str, str]] = Counter()
        self.server_clock = ServerClock()
        self._credentials_version = 0  # increases when a reload reads other credentials than before
        self._in_flight = asyncio.Semaphore(max_in_flight)
        self._rate_limiter = RateLimiter(RealClock(), qps) if qps else None

    async def call(self, call: _Call) -> bytes:
        """Carry out a call and return the body of the answer.

        The whole call has a deadline, at most `max_call_s` of the client. An urgent call waits neither for the limit on
        concurrent calls nor for the rate limit. Raises CallError; it is Unreachable if the whole answer has not arrived
        by the deadline.
        """
        if self._max_call_s is not None and self._max_call_s < call.deadline_s:
            call = replace(call, deadline_s=self._max_call_s)
        try:
            async with asyncio.timeout(call.deadline_s):
                if call.urgent:
                    return await self._read(call)
                async with self._in_flight:
                    if self._rate_limiter:
                        await self._rate_limiter.acquire()
                    return await self._read(call)
        except TimeoutError as error:
            raise Unreachable(call.method, call.path, 0, f"no answer within {call.deadline_s:g} s") from error

    async def _read(self, call: _Call) -> bytes:
        """Send a call and return the whole body. Raises CallError; it is Unreachable if the body breaks off."""
        answer = await self.send(call)
        try:
            return await answer.read()
        except OSError as error:
            raise Unreachable(call.method, call.path, 0, f"the answer broke off: {error!r}") from error
        finally:
            answer.release()

    async def send(self, call: _Call) -> Response:
        """Send a call and return the answer before its body is read; the caller reads and closes it. Raises CallError.

        On 401, reload the credentials, and repeat the call once if a reload changed them since the call was
        sent.
        """
        version = self._credentials_version
        try:
            return await self._send_once(call)
        except Unauthorised as first_error:
            try:
                if await self._transport.reload():
                    self._credentials_version += 1
            except Exception as error:  # any error of YAML, TLS and file reading
                text = f"no fresh credentials: {error}"
                raise Unauthorised(call.method, call.path, first_error.status, text) from first_error
            if self._credentials_version == version:  # a concurrent call may have reloaded them
                raise
        return await self._send_once(call)

    async def _send_once(self, call: _Call) -> Response:
        """Send a call without a retry, and return the answer before its body is read. Count it in `counts`.

        Raises Unreachable without an answer or at the deadline, Unauthorised if the credentials cannot be read,
        Rejected if the body is no JSON, and the error of a status other than 2xx.
        """
        if isinstance(call.body, bytes):
            call = replace(call, body=_decode_body(call, call.body))
        headers = self._headers if call.body is None else {**self._headers, "Content-Type": call.content_type}
        deadline_s = None if call.stream else call.deadline_s
        answer: Response | None = None
        try:
            async with asyncio.timeout(call.deadline_s):
                answer = await self._transport.send(
                    Request(call.method, call.path, call.params or {}, headers, call.body, deadline_s)
                )
                self.server_clock.note(answer.header("Date"), time.monotonic())
                self.counts[call.method.lower(), _code(answer.status)] += 1
                if not 200 <= answer.status < 300:
                    await _raise_error(call, answer)
                return answer
        except UnreadableCredentials as error:
            raise Unauthorised(call.method, call.path, 0, f"credentials cannot be read: {error}") from error
        except OSError as error:  # TimeoutError is an OSError
            if answer is None:
                self.counts[call.method.lower(), "none"] += 1
            raise Unreachable(call.method, call.path, 0, str(error) or repr(error)) from error


class Client:
    """A client of one API server. Open it with `Client.open`, and close it or use it as an async context.

    Every call raises CallError unless the server answered with success. Every call but watch() and stream() ends within
    its `deadline_s` (real seconds). path: the path of the URL. params: parameters of the query. urgent: the call waits
    for no limit.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        max_in_flight: int = 64,
        qps: float | None = None,
        max_call_s: float | None = None,
        as_user: str = "",
    ) -> None:
        """Make a client that sends its requests over a transport.

        max_in_flight: concurrent calls, >= 1. qps: calls a second; None for no limit. max_call_s: an upper bound for
        the deadline of every call, in seconds; None for no bound. as_user: the user to impersonate; "" for no
        impersonation. Watches, streams and urgent calls (of a Lease) wait neither for `max_in_flight` nor for `qps`.
        """
        self._transport = transport
        self.requests = RequestSender(transport, max_in_flight, qps, max_call_s, as_user)

    @classmethod
    async def open(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        minimal: bool = False,
        max_in_flight: int = 64,
        qps: float | None = None,
        max_call_s: float | None = None,
        as_user: str = "",
    ) -> Client:
        """Open a client with the given kubeconfig, else the pod's service account, else the user's default kubeconfig.

        kubeconfig: the path of the file, or several paths as in $KUBECONFIG. context: the name of a context, None for
        the current one. If only `context` is given, it is looked up in the default kubeconfig, also in a pod. minimal:
        the program ends soon, so import the Kubernetes library only if the kubeconfig needs it. The other arguments: as
        in __init__. Raises NoCluster if there is no kubeconfig, BadKubeconfig if it cannot be used, and
        ModuleNotFoundError without the Kubernetes library.
        """
        if find_spec(_LIBRARY_MODULE) is None:  # checked first, because no kubeconfig helps without the extra
            raise ModuleNotFoundError(f"No module named {_LIBRARY_MODULE!r}", name=_LIBRARY_MODULE)
        check_kubeconfig_exists(kubeconfig)
        try:
            transport = (
                _open_minimal_transport(kubeconfig, context) if minimal else None
            ) or await _open_library_transport(kubeconfig, context)
        except Exception as error:  # the loaders raise any error of YAML, TLS and file reading
            name = kubeconfig or "in-cluster or default kubeconfig"
            raise BadKubeconfig(f"{name} cannot be used: {_kubeconfig_fault(error)}") from error
        return cls(transport, max_in_flight=max_in_flight, qps=qps, max_call_s=max_call_s, as_user=as_user)

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def get(
        self, path: str, params: Params | None = None, *, urgent: bool = False, deadline_s: float = CALL_S
    ) -> bytes:
        """Return the body of a GET: an object or a list as JSON. Raises NotFound if it does not exist, or another
        CallError.

        path: of the URL. params: of its query. urgent: do not wait for the limits of the client. deadline_s: of the
        whole call.
        """
        return await self.requests.call(_Call("GET", path, params, deadline_s, urgent))

    async def pages(
        self, path: str, params: Params | None = None, *, limit: int = 500, deadline_s: float = CALL_S
    ) -> AsyncIterator[bytes]:
        """Yield each page of a list, as JSON. Raises CallError.

        path: of the list. params: further parameters of the query. limit: items per page, 0 for a single page.
        deadline_s: seconds for each page. Raises Gone if the server no longer knows the version of the list before the
        last page, and BadResponse for a page that is no JSON object, which is not yielded.
        """
        continue_token = ""
        while True:
            query = {
                **(params or {}),
                **({"limit": limit} if limit else {}),
                **({"continue": continue_token} if continue_token else {}),
            }
            page = await self.get(path, query, deadline_s=deadline_s)
            continue_token = decode_answer(_page_end, "GET", path, page).metadata.token
            yield page
            if not continue_token:
                return

    async def create(
        self, path: str, body: Body, *, params: Params | None = None, urgent: bool = False, deadline_s: float = CALL_S
    ) -> bytes:
        """Create an object and return it as JSON, as the server stored it.

        Raises Conflict if it exists, or another CallError. path: of the list. body: JSON values or encoded JSON.
        params: of the query. urgent: do not wait for the limits of the client. deadline_s: of the whole call.
        """
        return await self.requests.call(_Call("POST", path, params, deadline_s, urgent, body))

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
        """Patch an object and return it as JSON, as the server stored it.

        Raises NotFound, Conflict if the body names a stale version, or another CallError. content_type: the media type
        of the patch. field_manager: the owner of the fields, None for a default. params: of the query. urgent: do not
        wait for the limits of the client. deadline_s: of the whole call.
        """
        query = {**(params or {}), **({"fieldManager": field_manager} if field_manager else {})}
        return await self.requests.call(_Call("PATCH", path, query, deadline_s, urgent, body, content_type))

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
        """Delete an object and return the server's answer, as JSON. Raises NotFound, or another CallError.

        uid, resource_version: delete only an object that still has them, else raise Conflict; None for any. grace_s:
        the grace period of a pod in seconds, None for its own. params: of the query. deadline_s: of the whole call.
        """
        preconditions = {key: v for key, v in (("uid", uid), ("resourceVersion", resource_version)) if v is not None}
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if preconditions:
            options["preconditions"] = preconditions
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        return await self.requests.call(_Call("DELETE", path, params, deadline_s, body=options))

    async def watch(self, path: str, params: Params, *, max_line_bytes: int = MAX_LINE_BYTES) -> AsyncIterator[bytes]:
        """Yield an empty line when the server has accepted the watch, then each line as JSON until the watch ends.

        path: of the list. params: of the query, without `watch`. Of a line above `max_line_bytes` only the first
        kilobyte is yielded, which cannot be decoded. Close the generator (`contextlib.aclosing`) if you do not read it
        to the end. A connection that is silent is not detected. Raises CallError; it is Unreachable if the connection
        breaks.
        """
        answer = await self.requests.send(_Call("GET", path, {**params, "watch": True}, CALL_S, stream=True))
        try:
            yield b""
            async for line in split_lines(answer.chunks(), max_line_bytes):
                yield line
        except OSError as error:
            raise Unreachable("GET", path, 0, f"the watch broke: {error!r}") from error
        finally:
            answer.close()  # not reusable: the next call would read the rest of this answer

    async def stream(self, path: str, params: Params) -> AsyncIterator[bytes]:
        """Yield the chunks of the answer to a GET as they arrive, until it ends, such as of a log that is followed.

        path: of the URL. params: of its query. Close the generator if you do not read it to the end. Raises CallError;
        it is Unreachable if the connection breaks.
        """
        answer = await self.requests.send(_Call("GET", path, params, CALL_S, stream=True))
        try:
            async for chunk in answer.chunks():
                yield chunk
        except OSError as error:
            raise Unreachable("GET", path, 0, f"the answer broke off: {error!r}") from error
        finally:
            answer.close()


def _code(status: int) -> str:
    """Return the label of an HTTP status in the metric: the code itself for _EXPECTED_CODES, else its class, as 5xx."""
    return str(status) if status in _EXPECTED_CODES else f"{status // 100}xx"


def load_library() -> None:
    """Import the Kubernetes library, which takes up to a second of CPU. Call it in a thread before `Client.open`.

    Raises ModuleNotFoundError if the extra is not installed.
    """
    import_module("turnout.kube.client.library_transport")


async def _open_library_transport(kubeconfig: str | None, context: str | None) -> Transport:
    """Open a transport of the Kubernetes client library, which supports every way to authenticate.

    kubeconfig: the path of the file, or several paths as in $KUBECONFIG. context: the name of a context, None for the
    current one. If both are None, the pod's service account is used, or the default kubeconfig outside a pod. If only
    `context` is given, it is looked up in the default kubeconfig. Raises any error of YAML, TLS and file reading.
    """
    from turnout.kube.client.library_transport import LibraryTransport

    return await LibraryTransport.open(kubeconfig, context)


def _kubeconfig_fault(error: Exception) -> str:
    """Return the message of an error of loading a kubeconfig, in one line."""
    if isinstance(error, (AttributeError, LookupError, TypeError)):  # of the library: it does not check the types
        return "it is malformed: it has no clusters, contexts and users in the form of a kubeconfig"
    return " ".join(str(error).split())


def _open_minimal_transport(kubeconfig: str | None, context: str | None) -> Transport | None:
    """Open the transport that imports little; None if the Kubernetes library is needed to use the kubeconfig.

    kubeconfig: the path of the file; None for $KUBECONFIG or the default one. context: the name of a context, None for
    the current one. Return None also for several paths, for a file that cannot be read, and, if `kubeconfig` is None,
    in a pod. Raises OSError or ValueError if the certificates or the token cannot be read.
    """
    from turnout.kube.client.plain_kubeconfig import kubeconfig_path, read_cluster_access, read_kubeconfig

    path = kubeconfig_path(kubeconfig)
    access = None if path is None else read_cluster_access(read_kubeconfig(path), path.parent, context)
    if access is None:
        return None
    from turnout.kube.client.minimal_transport import MinimalTransport

    return MinimalTransport.open(access)


async def _raise_error(call: _Call, answer: Response) -> None:
    """Raise the CallError for an answer with an error status, and close the answer. It never returns.

    At most the first _MAX_ERROR_BYTES of the body are read. If the connection breaks, the rest of the body is missing
    in the message. call: the request, for the message.
    """
    body = b""
    try:
        async for chunk in answer.chunks():
            body += chunk
            if len(body) >= _MAX_ERROR_BYTES:
                break
    except OSError:
        pass  # the status is known, and decides what the caller can do
    finally:
        answer.close()
    raise error_of_response(
        call.method, call.path, answer.status, body[:_MAX_ERROR_BYTES], answer.header("Retry-After")
    )


def _decode_body(call: _Call, body: bytes) -> Any:
    """Return the JSON values of an encoded body, because the transport encodes JSON itself.

    call: the request, for the message. Raises Rejected if the body is no JSON.
    """
    try:
        return msgspec.json.decode(body)
    except UNREADABLE as error:
        raise Rejected(call.method, call.path, 0, f"our own body is not JSON: {error}") from error


def _seconds_of_date(date: str) -> float | None:
    """Return an HTTP date in seconds since 1970, at the middle of its second, because a date has no fractions of a
    second; None if it is not a date.
    """
    from email.utils import parsedate_to_datetime  # imported late, because most commands do not need it

    try:
        return parsedate_to_datetime(date).timestamp() + 0.5
    except (ValueError, TypeError, OverflowError):
        return None


def check_kubeconfig_exists(kubeconfig: str | None) -> None:
    """Raise NoCluster if there is no kubeconfig and this process does not run in a pod.

    kubeconfig: the path or paths; None for $KUBECONFIG, else the user's default file. One existing file is enough.
    """
    if kubeconfig is None and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return
    paths = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not any(Path(path).expanduser().exists() for path in paths.split(os.pathsep) if path):
        raise NoCluster(paths)

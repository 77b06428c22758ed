"""The one client of the API server: raw bytes in and out, a deadline on every call, typed errors.

`kubernetes.aio` finds the server, proves who we are and carries the bytes; its models never see them. What an
answer means, and when to try again, is left to the caller.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from turnout.kube.client.clock import RealClock
from turnout.kube.client.line_splitter import MAX_LINE_BYTES, split
from turnout.kube.client.rate_limiter import Pace
from turnout.kube.errors import BadAnswer, BadKubeconfig, NoCluster, Rejected, Unauthorised, Unreachable
from turnout.kube.status import answered

log = logging.getLogger(__name__)

Params = Mapping[str, str | int | bool]
Body = bytes | dict[str, Any] | list[Any]

CALL_S = 30.0  # the longest that any call but a watch may take, etcd's slow days included
CONNECT_S = 10.0
FAREWELL_S = 0.25
MERGE_PATCH = "application/merge-patch+json"
_JSON = "application/json"
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
        configuration: Configuration,
        reload: Callable[[], Awaitable[None]],
        *,
        max_in_flight: int = 64,
        qps: float | None = None,
    ) -> None:
        """reload: reads the credentials anew into `configuration`. qps: calls a second, None = as the server bears.

        A watch and an urgent call (a Lease) wait neither for `max_in_flight` nor for `qps`.
        """
        self._configuration, self._reload = configuration, reload
        self._api = ApiClient(configuration)
        self._api.user_agent = "turnout"
        self._dates: deque[float] = deque(maxlen=_DATES)  # by how much the server was ahead of our monotonic clock
        self._room = asyncio.Semaphore(max_in_flight)
        self._pace = Pace(RealClock(), qps) if qps else None

    @classmethod
    async def open(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        max_in_flight: int = 64,
        qps: float | None = None,
    ) -> Client:
        """Use the kubeconfig named, else the pod's service account, else the user's own kubeconfig.

        Raises NoCluster when there is none, and BadKubeconfig when none can be used.
        """
        configuration = Configuration()
        configuration.connection_pool_maxsize = 0  # bounded here, so that a Lease never queues behind patches

        async def reload() -> None:
            if kubeconfig is None and context is None:
                try:
                    load_incluster_config(client_configuration=configuration)
                except ConfigException:
                    log.debug("not_in_cluster")
                else:
                    return
            await load_kube_config(kubeconfig, context, client_configuration=configuration)

        find_kubeconfig(kubeconfig)
        try:
            await reload()
            if _is_loopback(configuration.host):  # as Go does: a proxy of the environment is not for loopback
                configuration.client_session_kwargs = {"trust_env": False}
            return cls(configuration, reload, max_in_flight=max_in_flight, qps=qps)
        except Exception as error:  # the loader lets through whatever YAML, TLS and file reading raise
            raise BadKubeconfig(f"{kubeconfig or 'in-cluster or default kubeconfig'}: {error}") from error

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
        return sorted(self._dates)[len(self._dates) // 2] if self._dates else None

    async def close(self) -> None:
        """End every connection, and give TLS the moment that its farewells take: aiohttp does not wait for them."""
        await self._api.close()
        if self._api.configuration.host.startswith("https"):
            await asyncio.sleep(FAREWELL_S)

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
        response = await self._send(_Ask("GET", path, {**params, "watch": True}, CALL_S, stream=True))
        try:
            yield b""
            async for line in split(response.content.iter_any(), max_line_bytes):
                yield line
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable("GET", path, 0, f"the watch broke: {error!r}") from error
        finally:
            response.close()  # never back to the pool: an unread rest would be somebody else's answer

    async def stream(self, path: str, params: Params) -> AsyncIterator[bytes]:
        """The pieces of an answer as they come, such as a log that is followed. Close it when leaving early."""
        response = await self._send(_Ask("GET", path, params, CALL_S, stream=True))
        try:
            async for piece in response.content.iter_any():
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable("GET", path, 0, f"the answer broke off: {error!r}") from error
        finally:
            response.close()

    async def _call(self, ask: _Ask) -> bytes:
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
        response = await self._send(ask)
        try:
            return await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(ask.method, ask.path, 0, f"the answer broke off: {error!r}") from error
        finally:
            response.release()

    async def _send(self, ask: _Ask) -> aiohttp.ClientResponse:
        """The response, its body unread. On 401 the credentials are read anew and the call repeated, once."""
        try:
            return await self._send_once(ask)
        except Unauthorised as refused:
            before = dict(self._configuration.api_key)
            try:
                await self._reload()
            except Exception as error:  # whatever YAML, TLS and file reading raise
                raise Unauthorised(ask.method, ask.path, 401, f"no fresh credentials: {error}") from refused
            if self._configuration.api_key == before:
                raise
        return await self._send_once(ask)

    async def _send_once(self, ask: _Ask) -> aiohttp.ClientResponse:
        if isinstance(ask.body, bytes):
            ask = replace(ask, body=_decoded(ask, ask.body))
        headers = {"Accept": _JSON, "Accept-Encoding": "identity"}  # gzip costs the server more than it saves us
        if ask.body is not None:
            headers["Content-Type"] = ask.content_type
        try:
            params = list((ask.params or {}).items())
            method, url, headers, _, _ = await self._api.param_serialize(
                ask.method, ask.path, query_params=params, header_params=headers, auth_settings=["BearerToken"]
            )
        except (ConfigException, OSError) as error:  # the token's file is gone or empty
            raise Unauthorised(ask.method, ask.path, 0, f"credentials cannot be read: {error}") from error
        timeout = aiohttp.ClientTimeout(total=None if ask.stream else ask.deadline_s, sock_connect=CONNECT_S)
        try:
            async with asyncio.timeout(ask.deadline_s):
                sent = await self._api.call_api(
                    method, url, headers, body=ask.body, _request_timeout=timeout, _preload_content=False
                )
                response: aiohttp.ClientResponse = sent.response
                if (told_s := _told_s(response.headers.get("Date", ""))) is not None:
                    self._dates.append(told_s - time.monotonic())
                if not 200 <= response.status < 300:
                    await _refuse(ask, response)
                return response
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise Unreachable(ask.method, ask.path, 0, repr(error)) from error


async def _refuse(ask: _Ask, response: aiohttp.ClientResponse) -> None:
    """Raise what the server says instead of an answer."""
    try:
        body = await response.content.read(_MAX_ERROR_BYTES)
    finally:
        response.close()
    raise answered(ask.method, ask.path, response.status, body, response.headers.get("Retry-After", ""))


def _decoded(ask: _Ask, body: bytes) -> Any:
    """The body as values: the transport encodes JSON itself and takes no ready bytes."""
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise Rejected(ask.method, ask.path, 0, f"our own body is not JSON: {error}") from error


def _told_s(date: str) -> float | None:
    """An HTTP date in seconds since 1970, at the middle of its second; None for what is none."""
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


def _is_loopback(host: str) -> bool:
    name = urlsplit(host).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"

"""Requests by `kubernetes.aio`: it finds the server, proves who we are and carries the bytes.

Its import takes a third of a second, so that only api_client.py imports it, and late.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from turnout.kube.client.transport import Answer, Broken, NoCredentials, Request

log = logging.getLogger(__name__)

CONNECT_S = 10.0
FAREWELL_S = 0.25


class LibraryTransport:
    """A way to the API server that a kubeconfig or a pod's service account names."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        self._kubeconfig, self._context = kubeconfig, context
        self._configuration = Configuration()
        self._configuration.connection_pool_maxsize = 0  # bounded by the client: a Lease never queues behind patches
        self._api: ApiClient | None = None

    @classmethod
    async def open(cls, kubeconfig: str | None, context: str | None) -> LibraryTransport:
        """Read the credentials. Raises whatever YAML, TLS and file reading raise."""
        transport = cls(kubeconfig, context)
        await transport._load()
        if _is_loopback(transport._configuration.host):  # as Go does: a proxy of the environment is not for loopback
            transport._configuration.client_session_kwargs = {"trust_env": False}
        transport._api = ApiClient(transport._configuration)
        return transport

    async def _load(self) -> None:
        if self._kubeconfig is None and self._context is None:
            try:
                load_incluster_config(client_configuration=self._configuration)
            except ConfigException:
                log.debug("not_in_cluster")
            else:
                return
        await load_kube_config(self._kubeconfig, self._context, client_configuration=self._configuration)

    async def reload(self) -> bool:
        """Read the credentials again, and return True if they have changed."""
        before = dict(self._configuration.api_key)
        await self._load()
        return bool(self._configuration.api_key != before)

    async def close(self) -> None:
        """End every connection, and give TLS the moment that its farewells take: aiohttp does not wait for them."""
        if self._api is None:
            return
        await self._api.close()
        if self._configuration.host.startswith("https"):
            await asyncio.sleep(FAREWELL_S)

    async def send(self, request: Request) -> Answer:
        """Send a request. Raises OSError, or NoCredentials."""
        assert self._api is not None
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                request.method,
                request.path,
                query_params=list(request.params.items()),
                header_params=dict(request.headers),
                auth_settings=["BearerToken"],
            )
        except (ConfigException, OSError) as error:  # the token's file is gone or empty
            raise NoCredentials(str(error)) from error
        headers["User-Agent"] = request.headers.get("User-Agent", "turnout")
        timeout = aiohttp.ClientTimeout(total=request.deadline_s, sock_connect=CONNECT_S)
        try:
            sent = await self._api.call_api(
                method, url, headers, body=request.body, _request_timeout=timeout, _preload_content=False
            )
        except aiohttp.ClientError as error:
            raise Broken(str(error) or repr(error)) from error
        return _LibraryAnswer(sent.response)


class _LibraryAnswer:
    """An answer of aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response

    @property
    def status(self) -> int:
        return self._response.status

    def header(self, name: str) -> str:
        return str(self._response.headers.get(name, ""))

    async def read(self) -> bytes:
        try:
            return await self._response.read()
        except aiohttp.ClientError as error:
            raise Broken(str(error) or repr(error)) from error

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._response.content.iter_any():
                yield piece
        except aiohttp.ClientError as error:
            raise Broken(str(error) or repr(error)) from error

    def release(self) -> None:
        self._response.release()

    def close(self) -> None:
        self._response.close()


def _is_loopback(host: str) -> bool:
    name = urlsplit(host).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"

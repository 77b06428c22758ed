"""The transport of the library `kubernetes.aio`, which finds the server, authenticates and carries the bytes.

Its import takes a third of a second, so only api_client.py imports it, and as late as possible.
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

from turnout.kube.client.transport import BrokenConnection, Request, Response, UnreadableCredentials

log = logging.getLogger(__name__)

CONNECT_S = 10.0  # the deadline of opening a connection, in seconds
TLS_CLOSE_S = 0.25  # seconds in which TLS connections are closed at the end


class LibraryTransport:
    """The transport to the API server of a kubeconfig or of a pod's service account."""

    def __init__(self, kubeconfig: str | None, context: str | None) -> None:
        """Make a transport without credentials. kubeconfig, context: as for open()."""
        self._kubeconfig, self._context = kubeconfig, context
        self._configuration = Configuration()
        self._configuration.connection_pool_maxsize = 0  # bounded by the client: a Lease never queues behind patches
        self._api: ApiClient | None = None

    @classmethod
    async def open(cls, kubeconfig: str | None, context: str | None) -> LibraryTransport:
        """Return a transport that has read its credentials.

        kubeconfig: the path of the file, or several paths as in $KUBECONFIG. context: the name of a context, None for
        the current one. If both are None, the pod's service account is used, or the default kubeconfig outside a pod.
        If only `context` is given, it is looked up in the default kubeconfig. Raises any error of YAML, TLS and file
        reading.
        """
        transport = cls(kubeconfig, context)
        await transport._load()
        if _is_loopback(transport._configuration.host):  # as Go does: a proxy of the environment is not for loopback
            transport._configuration.client_session_kwargs = {"trust_env": False}
        transport._api = ApiClient(transport._configuration)
        return transport

    async def _load(self) -> None:
        """Load the kubeconfig if one or a context is named.

        Else the service account of the pod, or the default kubeconfig. Raises any error of YAML, TLS and file reading.
        """
        if self._kubeconfig is None and self._context is None:
            try:
                load_incluster_config(client_configuration=self._configuration)
            except ConfigException:
                log.debug("not_in_cluster")
            else:
                return
        await load_kube_config(self._kubeconfig, self._context, client_configuration=self._configuration)

    async def reload(self) -> bool:
        """Read the credentials again. Return True if the token changed.

        Raises any error of YAML, TLS and file reading.
        """
        before = dict(self._configuration.api_key)
        await self._load()
        return bool(self._configuration.api_key != before)

    async def close(self) -> None:
        """Close every connection, and wait until TLS has closed too, because aiohttp does not wait."""
        if self._api is None:
            return
        await self._api.close()
        if self._configuration.host.startswith("https"):
            await asyncio.sleep(TLS_CLOSE_S)

    async def send(self, request: Request) -> Response:
        """Send a request and return the answer, of any status, when its head has arrived.

        Raises OSError if there is no answer, and UnreadableCredentials if the token cannot be read; then nothing was
        sent.
        """
        assert self._api is not None
        try:
            method, url, headers, _, _ = await self._api.param_serialize(
                request.method,
                request.path,
                query_params=list(request.params.items()),
                header_params=dict(request.headers),
                auth_settings=["BearerToken"],
            )
        except (ConfigException, OSError) as error:  # the file of the token is missing or empty
            raise UnreadableCredentials(str(error)) from error
        headers["User-Agent"] = request.headers.get("User-Agent", "turnout")
        timeout = aiohttp.ClientTimeout(total=request.deadline_s, sock_connect=CONNECT_S)
        try:
            sent = await self._api.call_api(
                method, url, headers, body=request.body, _request_timeout=timeout, _preload_content=False
            )
        except aiohttp.ClientError as error:
            raise BrokenConnection(str(error) or repr(error)) from error
        return _LibraryResponse(sent.response)


class _LibraryResponse:
    """An answer of aiohttp."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        """Take an answer whose body is not read yet."""
        self._response = response

    @property
    def status(self) -> int:
        """Return the HTTP status code."""
        return self._response.status

    def header(self, name: str) -> str:
        """Return the value of a header, "" if the answer does not have it."""
        return str(self._response.headers.get(name, ""))

    async def read(self) -> bytes:
        """Return the whole body. Raises BrokenConnection."""
        try:
            return await self._response.read()
        except aiohttp.ClientError as error:
            raise BrokenConnection(str(error) or repr(error)) from error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the parts of the body as they arrive. Raises BrokenConnection."""
        try:
            async for chunk in self._response.content.iter_any():
                yield chunk
        except aiohttp.ClientError as error:
            raise BrokenConnection(str(error) or repr(error)) from error

    def release(self) -> None:
        """Keep the connection for the next request if the body was read to its end, else close it."""
        self._response.release()

    def close(self) -> None:
        """Close the connection."""
        self._response.close()


def _is_loopback(host: str) -> bool:
    """Return True if the host of a URL is this machine. host: the whole URL."""
    name = urlsplit(host).hostname or ""
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"

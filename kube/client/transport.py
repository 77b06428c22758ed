"""The interface of a transport, which carries requests to an API server. api_client.py handles errors and retries.

Two modules implement it: `library_transport.py` for services and for every way to authenticate, `minimal_transport.py`
for commands that end soon.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Params = Mapping[str, str | int | bool]  # of the query of a URL


class UnreadableCredentials(Exception):
    """The credentials cannot be read. No request was sent. Report it to the caller."""


class BrokenConnection(OSError):
    """A connection that cannot be made, or that broke. Every other network error is an OSError already."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it is sent."""

    method: str  # the HTTP method
    path: str  # the path of the URL
    params: Params = field(default_factory=dict)  # the parameters of the query
    headers: Mapping[str, str] = field(default_factory=dict)  # the headers, without credentials
    body: Any = None  # JSON values; None for no body
    deadline_s: float | None = None  # seconds for the whole answer; None for a stream, which may have no end


class Response(Protocol):
    """An answer whose body is not read yet."""

    @property
    def status(self) -> int:
        """Return the HTTP status code."""

    def header(self, name: str) -> str:
        """Return the value of a header, "" if the answer does not have it."""

    async def read(self) -> bytes:
        """Return the whole body. Raises OSError."""

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises OSError."""

    def release(self) -> None:
        """Keep the connection for the next request if the body was read to its end, else close it."""

    def close(self) -> None:
        """Close the connection."""


class Transport(Protocol):
    """A connection to one API server."""

    async def send(self, request: Request) -> Response:
        """Send a request and return the answer when its head has arrived. Raises OSError or UnreadableCredentials."""

    async def reload(self) -> bool:
        """Read the credentials again, and return True if they changed. Raises any error of reading."""

    async def close(self) -> None:
        """Close every connection."""

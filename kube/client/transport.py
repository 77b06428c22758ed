"""The interface of whatever carries requests to an API server. Errors and repetitions are api_client.py's.

Two modules carry requests: `library_transport.py` for services and for every way to sign in, `brief_transport.py` for
a command that ends in a moment.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

Params = Mapping[str, str | int | bool]


class NoCredentials(Exception):
    """The credentials cannot be read. Tell the caller; the server was not asked."""


class Broken(OSError):
    """A connection that cannot be made, or broke. Every other network error is an OSError already."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, as it goes over the wire."""

    method: str
    path: str
    params: Params = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None  # of JSON values; None for no body
    deadline_s: float | None = None  # None for a stream, which has no end


class Answer(Protocol):
    """An answer of which the body is not read yet."""

    @property
    def status(self) -> int:
        """Return the code of HTTP."""

    def header(self, name: str) -> str:
        """Return a header, "" if the answer has none of the name."""

    async def read(self) -> bytes:
        """Read the whole body. Raises OSError."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises OSError."""

    def release(self) -> None:
        """Give the connection back for the next request, if the body is read to its end."""

    def close(self) -> None:
        """Close the connection."""


class Transport(Protocol):
    """A way to one API server."""

    async def send(self, request: Request) -> Answer:
        """Send a request and return the answer once its head is there. Raises OSError, or NoCredentials."""

    async def reload(self) -> bool:
        """Read the credentials again, and return True if they have changed. Raises whatever reading raises."""

    async def close(self) -> None:
        """Close every connection."""

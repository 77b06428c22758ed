"""Calls to the API server that check the Lease before each write.

The work of a leader is cancelled when its term ends. But a process that was paused may continue in the middle of its
writes, after another leader has started.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from turnout.kube.client.apply import MERGE
from turnout.kube.errors import NotLeading


class Calls(Protocol):
    """The calls of a Client that a writer needs."""

    async def get(self, path: str) -> bytes:
        """Return the object. Raises NotFound."""

    async def create(self, path: str, body: Any) -> bytes:
        """Return the object as created. Raises Conflict if it exists."""

    async def patch(self, path: str, body: Any, content_type: str = MERGE, field_manager: str | None = None) -> bytes:
        """Return the object as patched. Raises Conflict if the version or uid in the body is not the current one."""

    async def delete(self, path: str, *, uid: str | None = None, params: Mapping[str, str] | None = None) -> bytes:
        """Delete the object if it still has that uid. Raises NotFound, Conflict."""


class LeasedCalls:
    """Calls for the holder of a Lease.

    A write raises NotLeading, and is not sent, if another replica may hold the Lease.
    """

    def __init__(self, calls: Calls, is_leading: Callable[[], bool]) -> None:
        """Take the calls, and a function that returns True while the Lease is ours. It is called before each write."""
        self._calls, self._is_leading = calls, is_leading

    async def get(self, path: str) -> bytes:
        """Return the object. Raises NotFound."""
        return await self._calls.get(path)

    async def create(self, path: str, body: Any) -> bytes:
        """Create an object and return it as JSON. Raises Conflict if it exists, NotLeading."""
        self._check("POST", path)
        return await self._calls.create(path, body)

    async def patch(self, path: str, body: Any, content_type: str = MERGE, field_manager: str | None = None) -> bytes:
        """Patch an object and return it as JSON.

        Raises Conflict if the version or uid in the body is not the current one, and NotLeading.
        """
        self._check("PATCH", path)
        return await self._calls.patch(path, body, content_type, field_manager)

    async def delete(self, path: str, *, uid: str | None = None, params: Mapping[str, str] | None = None) -> bytes:
        """Delete an object and return the server's answer, as JSON.

        uid: delete the object only if it still has this uid; None for any. params: of the query. Raises NotFound,
        Conflict if it has another uid, and NotLeading.
        """
        self._check("DELETE", path)
        return await self._calls.delete(path, uid=uid, params=params)

    def _check(self, method: str, path: str) -> None:
        """Raise NotLeading if the Lease is not ours."""
        if not self._is_leading():
            raise NotLeading(method, path, 0, "not sent: another replica may hold the Lease")

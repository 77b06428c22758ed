"""Create an object, or update it if it exists."""

from __future__ import annotations

from typing import Any, Protocol

from turnout.kube.errors import Conflict, NotFound

MERGE = "application/merge-patch+json"


class Store(Protocol):
    """The calls of a Client that apply_object needs."""

    async def patch(self, path: str, body: Any, content_type: str, field_manager: str) -> bytes:
        """Return the patched object. Raises NotFound."""

    async def create(self, path: str, body: Any) -> bytes:
        """Return the created object. Raises Conflict if it exists, and NotFound if its namespace does not exist."""


async def apply_object(store: Store, path: str, body: dict[str, Any], manager: str) -> None:
    """Write the fields of an object. Fields that the body does not name stay; None removes a field.

    path: the path of the object. Raises CallError, except for a creation or deletion by somebody else in the meantime.
    """
    try:
        await store.patch(path, body, MERGE, manager)
    except NotFound:
        try:
            await store.create(path.rpartition("/")[0], _without_none(body))
        except Conflict:  # somebody made it meanwhile
            await store.patch(path, body, MERGE, manager)


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value

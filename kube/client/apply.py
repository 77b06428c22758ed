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
    """Patch fields of an object, or create the object with these fields if it does not exist.

    path: of the object. body: the fields; other fields stay unchanged, and the value None removes a field. It needs
    apiVersion, kind and metadata.name, because the object may be created. manager: the owner of the fields after a
    patch; a created object gets the owner that the API server derives from the User-Agent. Raises CallError.
    """
    try:
        await store.patch(path, body, MERGE, manager)
    except NotFound:
        try:
            await store.create(path.rpartition("/")[0], _without_none(body))
        except Conflict:  # another program created it in the meantime
            await store.patch(path, body, MERGE, manager)


def _without_none(value: Any) -> Any:
    """Return a JSON value without the fields whose value is None, also inside objects."""
    if isinstance(value, dict):
        return {key: _without_none(each) for key, each in value.items() if each is not None}
    return value

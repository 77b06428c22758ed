"""Makes an object be as it is wanted, whether it is there or not: a merge patch, else its creation."""

from __future__ import annotations

from typing import Any, Protocol

from turnout.kube.errors import Conflict, NotFound

MERGE = "application/merge-patch+json"


class Store(Protocol):
    """The calls that applying needs of a Client."""

    async def patch(self, path: str, body: Any, content_type: str, field_manager: str) -> bytes:
        """The object as patched. Raises NotFound."""

    async def create(self, path: str, body: Any) -> bytes:
        """The object as created. Raises Conflict when it exists, NotFound without its namespace."""


async def put(store: Store, path: str, body: dict[str, Any], manager: str) -> None:
    """Write an object's fields; those that body does not name stay, and None takes one away.

    path: of the object. Raises CallError for all but its coming or going meanwhile.
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

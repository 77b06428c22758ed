"""Keeps an object as the bytes of its JSON, a fifth of what its dicts take: ten thousand jobs are 100 MB as dicts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec


class Packed(Mapping[str, Any]):
    """An object that is decoded anew each time a field of it is asked for, as few objects are."""

    __slots__ = ("_json",)

    def __init__(self, obj: Mapping[str, Any]) -> None:
        self._json = msgspec.json.encode(dict(obj))

    def __getitem__(self, name: str) -> Any:
        return self.unpacked()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.unpacked())

    def __len__(self) -> int:
        return len(self.unpacked())

    def unpacked(self) -> dict[str, Any]:
        """Return the object as values of the caller's own."""
        return dict(msgspec.json.decode(self._json))

"""Follows one ConfigMap: its newest version is read in a thread, so that a large one holds nobody up.

What the data say, and what is made of them, is the caller's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from turnout.kube.feed import Key
from turnout.kube.objects import ConfigMap

T = TypeVar("T")


class ConfigMapFollower(Generic[T]):
    """A sink of a reflector of one ConfigMap. read: of its data, in a thread; it raises nothing.

    take: of what was read and the annotations, in the event loop; of None where there is no ConfigMap.
    """

    def __init__(
        self, read: Callable[[Mapping[str, str]], T], take: Callable[[T | None, Mapping[str, str]], None]
    ) -> None:
        self._read, self._take = read, take
        self._newest: ConfigMap | None = None
        self._news = asyncio.Event()

    def put(self, obj: ConfigMap) -> None:
        """The ConfigMap as it is now."""
        self._newest = obj
        self._news.set()

    def drop(self, key: Key) -> None:
        """It is gone."""
        self._newest = None
        self._news.set()

    def synced(self) -> None:
        """A whole list has been told; it may have had nothing."""
        if self._newest is None:
            self._news.set()

    async def run(self) -> None:
        """Follow it until cancelled. Versions that come while one is read are skipped but for the last."""
        while True:
            await self._news.wait()
            self._news.clear()
            newest = self._newest
            if newest is None:
                self._take(None, {})
                continue
            self._take(await asyncio.to_thread(self._read, newest.data or {}), newest.metadata.annotations or {})

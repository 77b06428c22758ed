"""Informers of one program, as client-go's SharedInformerFactory has them: made alike, run and waited for together.

Which kinds are watched, and what becomes of their objects, is the caller's. How one is followed is in reflector.py.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from turnout.kube.client.clock import Clock
from turnout.kube.client.reflector import Outage, Reflector, Source
from turnout.kube.client.run_until_signal import together
from turnout.kube.objects import ConfigMap
from turnout.kube.watch_events import Key, Sink

T = TypeVar("T")

SYNC_CHECK_S = 0.05


def _nothing(*_: object) -> None:
    """Stand in for whoever need not be told."""


class Handlers:
    """A sink of plain functions. changed: called after each of them, and when a list has been told.

    listed: called with the version of each list, after its objects.
    """

    def __init__(
        self,
        put: Callable[[Any], None],
        drop: Callable[[Key], None],
        changed: Callable[[], object] = _nothing,
        listed: Callable[[str], object] = _nothing,
    ) -> None:
        self._put, self._drop, self._changed, self._listed = put, drop, changed, listed

    def put(self, obj: Any) -> None:
        """Hand the object on."""
        self._put(obj)
        self._changed()

    def drop(self, key: Key) -> None:
        """Hand on that it is gone."""
        self._drop(key)
        self._changed()

    def synced(self, version: str) -> None:
        """Say that the list is whole."""
        self._listed(version)
        self._changed()


class ConfigMapFollower(Generic[T]):
    """A sink of one ConfigMap, whose newest version is read in a thread: a large one holds nobody up.

    read: of its data, in a thread; it raises nothing. take: of what was read and the annotations, in the event loop;
    of None where there is no ConfigMap.
    """

    def __init__(
        self, read: Callable[[Mapping[str, str]], T], take: Callable[[T | None, Mapping[str, str]], None]
    ) -> None:
        self._read, self._take = read, take
        self._newest: ConfigMap | None = None
        self._news = asyncio.Event()
        self.has_synced = False  # set once the ConfigMap, or that there is none, has been taken

    def put(self, obj: ConfigMap) -> None:
        """The ConfigMap as it is now."""
        self._newest = obj
        self._news.set()

    def drop(self, key: Key) -> None:
        """Note that the ConfigMap is gone."""
        self._newest = None
        self._news.set()

    def synced(self, version: str) -> None:
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
            else:
                drawn = await asyncio.to_thread(self._read, newest.data or {})
                self._take(drawn, newest.metadata.annotations or {})
            self.has_synced = True


class InformerFactory:
    """Makes one reflector a kind. reflectors: by the names that they were given."""

    def __init__(self, source: Source, clock: Clock, rng: random.Random) -> None:
        self._source, self._clock, self._rng, self._outage = source, clock, rng, Outage()
        self._followers: list[ConfigMapFollower[Any]] = []
        self._works: list[Callable[[], Coroutine[Any, Any, None]]] = []  # run beside the reflectors
        self.reflectors: dict[str, Reflector[Any]] = {}

    def watch(self, name: str, path: str, kind: type[Any], sink: Sink[Any], **options: Any) -> None:
        """Tell `sink` of the objects under `path`. options: those of a Reflector."""
        self.reflectors[name] = Reflector(
            self._source, path, kind, sink, clock=self._clock, rng=self._rng, outage=self._outage, **options
        )

    def watch_configmap(self, name: str, configmap: str, sink: Sink[ConfigMap]) -> None:
        """Tell `sink` of one ConfigMap, namespace/name."""
        namespace, _, only = configmap.partition("/")
        path, params = f"/api/v1/namespaces/{namespace}/configmaps", {"fieldSelector": f"metadata.name={only}"}
        self.watch(name, path, ConfigMap, sink, params=params)

    def follow_configmap(self, name: str, configmap: str, follower: ConfigMapFollower[Any]) -> None:
        """Have one ConfigMap, namespace/name, read in a thread."""
        self._followers.append(follower)
        self._works.append(follower.run)
        self.watch_configmap(name, configmap, follower)

    def unsynced(self) -> list[str]:
        """Name the kinds of which no whole list has been told yet."""
        return [name for name, reflector in self.reflectors.items() if not reflector.has_synced]

    @property
    def has_synced(self) -> bool:
        """True if every list has been told, and each followed ConfigMap taken."""
        return not self.unsynced() and all(follower.has_synced for follower in self._followers)

    def unready(self) -> str | None:
        """Say why a probe has to wait; None when it need not."""
        return None if self.has_synced else "no whole list yet"

    async def synced(self) -> None:
        """Wait until that is so."""
        while not self.has_synced:
            await self._clock.sleep(SYNC_CHECK_S)

    def age_s(self) -> float:
        """How long ago the quietest watch told anything; one that lives does it once a minute at least."""
        return self._clock.monotonic() - min(each.last_event_s for each in self.reflectors.values())

    async def run(self) -> None:
        """Watch until cancelled. A watch ends only by a fault of ours, which ends the program."""
        await together(*(reflector.run for reflector in self.reflectors.values()), *self._works)

"""An autoscaler in a process of its own, fed from a folder as by an API server: `python -m ...feeder FOLDER`.

All its parts are the shipped ones, its garbage collector's settings too; only bytes come from files: a list of each
collection, then twice the changes a second that it has to bear. It runs dry, so that it decides anew at each look. The
last line that it prints is JSON: what it has read, the times of its looks and decisions, and its memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from hack.bench.autoscaler.cluster import GPU, Change, Cluster
from hack.bench.support.measure import memory_mib
from turnout.autoscaler.__main__ import wait_until_synced
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.controller import AutoscalerController
from turnout.autoscaler.controller.informers import AutoscalerInformers
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.controller.scale_writer import ScaleWriter
from turnout.autoscaler.model import Observation, Policy, Step
from turnout.autoscaler.settings import WatchedConfigMaps
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey
from turnout.kube.client.clock import RealClock

PAGE = 500
GIVE_UP_S = 300.0
BURST = 64  # lines that come at once
PER_S = 2000.0  # changes that are offered


def write_input(folder: Path, cluster: Cluster, changes: Iterable[Change]) -> None:
    """Write what the autoscaler reads into a folder: the lists of the cluster, then the changes that follow them."""
    encode = msgspec.json.encode
    for path, objects in cluster.objects.items():
        items = [*objects.values()]
        with (folder / _file(path)).open("wb") as file:
            for at in range(0, len(items), PAGE):
                file.write(encode({"metadata": {"resourceVersion": "1"}, "items": items[at : at + PAGE]}) + b"\n")
    with (folder / "changes").open("wb") as file:
        for path, word, raw in changes:
            file.write(path.encode() + b" " + encode({"type": word, "object": raw}) + b"\n")


def run_fed_autoscaler(folder: Path) -> dict[str, Any]:
    """Run this module in a process of its own, which feeds an autoscaler from a folder. Return its measurements by
    name.

    Raises CalledProcessError if the process fails, and TimeoutExpired after GIVE_UP_S.
    """
    command = [sys.executable, "-m", "hack.bench.autoscaler.feeder", str(folder)]
    ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=GIVE_UP_S)
    return dict(json.loads(ended.stdout.splitlines()[-1]))


class FolderSource:
    """A Source: lists and changes of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, asyncio.Queue[bytes]] = {}

    async def pages(
        self, path: str, params: Mapping[str, Any] | None = None, *, limit: int = PAGE
    ) -> AsyncIterator[bytes]:
        """Yield each page of a list, as an API server would; one empty page for a collection that is not in the folder.

        path: of the collection. params, limit: ignored.
        """
        file = self._folder / _file(path)
        if not file.exists():
            yield b'{"metadata": {"resourceVersion": "1"}, "items": []}'
            return
        with file.open("rb") as lines:
            for line in lines:
                yield line

    async def watch(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[bytes]:
        """Yield each change of a collection as JSON without a collection name when `play` sends it, without end.

        path: of the collection. params: ignored.
        """
        lines = self._lines.setdefault(path, asyncio.Queue())
        while True:
            yield await lines.get()
            lines.task_done()

    async def play(self, per_s: float) -> int:
        """Send all changes to the watches, at most `per_s` a second; return their number.

        Each burst waits until the autoscaler has read the burst before it. Raises KeyError for a collection that the
        autoscaler does not watch.
        """
        sent, began_s = 0, time.perf_counter()
        with (self._folder / "changes").open("rb") as changes:
            while burst := [*islice(changes, BURST)]:
                for line in burst:
                    path, _, event = line.partition(b" ")
                    self._lines[path.decode()].put_nowait(event)
                for lines in self._lines.values():
                    await lines.join()
                sent += len(burst)
                await asyncio.sleep(max(0.0, began_s + sent / per_s - time.perf_counter()))
        return sent


class TimedCache(Cache):
    """A cache that records the CPU seconds of its observations."""

    took_s: list[float]

    def observation(
        self, now_s: float, age_s: float = 0.0, complete: bool = True, monotonic_s: float | None = None
    ) -> Observation:
        """Return the observation of the cache, and append its CPU seconds in this thread to `took_s`.

        The arguments are those of `Cache.observation`.
        """
        began_s = time.thread_time()
        observed = super().observation(now_s, age_s, complete, monotonic_s)
        self.took_s.append(time.thread_time() - began_s)
        return observed


class TimedController(AutoscalerController):
    """A controller that records the CPU seconds of each whole look."""

    took_s: list[float]  # CPU seconds of each look so far
    first_look_done: asyncio.Event  # set after the first look

    async def look(self, now_s: float, jumped_s: float = 0.0) -> int:
        """Run the controller's decision loop once, and append its CPU seconds in this thread to `took_s`.

        Arguments and result as of `AutoscalerController.look`.
        """
        began_s = time.thread_time()
        write_count = await super().look(now_s, jumped_s)
        self.took_s.append(time.thread_time() - began_s)
        self.first_look_done.set()
        return write_count


class DecisionTimes:
    """Replaces the histogram of decisions: keeps each time, in CPU seconds."""

    def __init__(self) -> None:
        self.took_s: list[float] = []

    @contextmanager
    def time(self) -> Iterator[None]:
        """Record the CPU time of the block, in seconds."""
        began_s = time.thread_time()
        yield
        self.took_s.append(time.thread_time() - began_s)


async def main(folder: Path) -> None:
    """Read the lists of a folder, then its changes, and print the results as one line of JSON.

    A failure of any task ends the program.
    """
    async with asyncio.TaskGroup() as tasks:
        pid = os.getpid()
        began_s, before_mib = time.perf_counter(), memory_mib(pid)
        view, source, clock = TimedCache(KINDS, (GPU,)), FolderSource(folder), RealClock()
        informers = AutoscalerInformers(
            view, source, KINDS, clock, random.Random(1), WatchedConfigMaps("default/map", "default/orders")
        )
        metrics, decisions = Metrics((GPU,)), DecisionTimes()
        metrics.decide_s = decisions  # type: ignore[assignment]
        writer = ScaleWriter(_NoJobs(), KINDS, lambda: 1, metrics.count_outcome)
        autoscaler = TimedController(view, informers, writer, Policy(), clock, _NoReporter(), metrics)
        view.took_s, autoscaler.took_s, autoscaler.first_look_done = [], [], asyncio.Event()
        watching = tasks.create_task(informers.run())
        await wait_until_synced(informers)
        found: dict[str, Any] = {"before_mib": before_mib, "start_s": time.perf_counter() - began_s}
        lending = tasks.create_task(autoscaler.run())
        await autoscaler.first_look_done.wait()
        found |= {"first_observation_s": view.took_s.pop(), "first_decision_s": decisions.took_s.pop()}
        autoscaler.took_s.clear()
        began_s = time.perf_counter()
        found |= {"changes": await source.play(PER_S), "took_s": time.perf_counter() - began_s}
        found |= {"mib": memory_mib(pid), "peak_mib": memory_mib(pid, "VmHWM"), "jobs": len(view.jobs.by_uid)}
        found |= {name: informers.reflectors[name].object_count for name in ("pods", "nodes")}
        found |= {"observation_s": view.took_s, "decision_s": decisions.took_s, "look_s": autoscaler.took_s}
        watching.cancel()
        lending.cancel()
    print(json.dumps(found))


class _NoReporter:
    """A receiver of decisions that drops them."""

    def report_decision(self, step: Step) -> None:
        """Ignore a new decision."""

    def report_unknown_annotations(self, key: JobKey, names: tuple[str, ...]) -> None:
        """Ignore unknown annotations."""


class _NoJobs:
    """A writer that is never called, since this autoscaler only looks."""

    async def _refuse(self, path: str, *_: Any, **__: Any) -> bytes:
        raise AssertionError(path)

    get = create = patch = delete = _refuse


def _file(path: str) -> str:
    return path.strip("/").replace("/", "_")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))

"""A local cluster as a person starts it, filled with pods: how long it takes to start, and until everything runs."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import aiohttp

from hack.bench.support.measure import memory_mib

WATCHERS = 20
_AT_ONCE = 32
_GPUS = 16  # of a node, so that a thousand nodes hold ten thousand pods
_LONGEST_S = 400.0


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The measurements of one run."""

    created_s: float  # until all pods were created
    run_s: float  # from the first creation until the last pod was seen to run
    behind_s: float  # by which the last watcher saw all pods run after the first watcher did
    cut_off: int  # watchers that did not see all pods run
    seen_mib: float  # bytes that one watcher received
    mib: float  # most memory of the local cluster's process
    extender_mib: float  # most memory of its extender; 0 without one


@contextmanager
def start_cluster(*flags: str) -> Iterator[tuple[float, str, int]]:
    """Start a local cluster in a new folder, with these further flags. Yield (seconds until it was ready, URL, pid).

    It is stopped at the end of the block. Raises CalledProcessError if it does not start or stop.
    """
    with TemporaryDirectory() as folder:
        env = {**os.environ, "XDG_STATE_HOME": folder}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # else every start would compile our modules anew
        command = [sys.executable, "-m", "turnout.cli", "local"]
        began_s = time.monotonic()
        subprocess.run([*command, "up", *flags], env=env, check=True, stdout=subprocess.DEVNULL)
        took_s = time.monotonic() - began_s
        try:
            note = json.loads(Path(folder, "turnout/local/state.json").read_text())
            config = json.loads(Path(folder, "turnout/local/kubeconfig").read_text())
            yield took_s, str(config["clusters"][0]["cluster"]["server"]), int(note["pid"])
        finally:
            subprocess.run([*command, "down"], env=env, check=True, stdout=subprocess.DEVNULL)


def time_start() -> float:
    """Return the seconds from the call of `turnout local up` until the local cluster and its extender are ready."""
    with start_cluster() as (took_s, _, _):
        return took_s


def fill_and_measure(nodes: int, pods: int) -> LoadResult:
    """Start a local cluster of `nodes` nodes, create `pods` pods, and measure until they run. Raises TimeoutError after
    _LONGEST_S.
    """
    with start_cluster("--nodes", str(nodes), "--gpus", str(_GPUS)) as (_, url, pid):
        return asyncio.run(asyncio.wait_for(_fill(url, pid, pods), _LONGEST_S))


async def _fill(url: str, pid: int, pods: int) -> LoadResult:
    """Create `pods` pods while watchers follow them. Return the figures. pid: of the local cluster, for its memory."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hack.bench.local_cluster.watchers", url, str(WATCHERS), str(pods)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert child.stdout is not None
    try:
        await child.stdout.readline()
        began_s = time.time()
        await _create(f"{url}/api/v1/namespaces/default/pods", pods)
        created_s = time.time() - began_s
        results = json.loads(await child.stdout.readline())
    finally:
        if child.returncode is None:
            child.terminate()
        await child.wait()
    done = results["done_s"] or [float("inf")]
    return LoadResult(
        created_s=created_s,
        run_s=max(done) - began_s,
        behind_s=max(done) - min(done),
        cut_off=results["cut_off"],
        seen_mib=results["mib"],
        mib=memory_mib(pid, "VmHWM"),
        extender_mib=max((memory_mib(child, "VmHWM") for child in _children(pid)), default=0.0),
    )


async def _create(url: str, pods: int) -> None:
    """Create `pods` pods as fast as the server accepts them, and return when all are created. url: of the collection.

    Raises RuntimeError if a pod is refused.
    """
    numbers = iter(range(pods))

    async def create_next(session: aiohttp.ClientSession) -> None:
        """Create pods one after the other until all are created."""
        for number in numbers:
            async with session.post(url, data=json.dumps(_pod(number)), headers=_JSON) as answer:
                if answer.status != 201:
                    raise RuntimeError(f"pod {number} was not created: {await answer.text()}")
                await answer.read()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(create_next(session) for _ in range(_AT_ONCE)))


_JSON = {"Content-Type": "application/json"}


def _pod(number: int) -> dict[str, Any]:
    """Return a pod that asks for one GPU. number: its name ends with it."""
    asks = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": "1"}
    container = {"name": "main", "image": "registry.example.com/train:1", "resources": {"limits": asks}}
    labels = {"app": "bench", "index": str(number)}
    return {"metadata": {"name": f"pod-{number:05d}", "labels": labels}, "spec": {"containers": [container]}}


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

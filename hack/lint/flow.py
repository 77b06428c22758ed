"""Print the modules, functions, calls and depth of one real question. `python -m hack.lint.flow {filter,decide,save}`.

A profile function counts the calls of product code, in the threads of this process. Modules that only define a package
do not count. The figures are for people who compare two commits; nothing fails here.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple, TypeVar

from hack.lint.architecture import LAYERS

ROOT = Path(__file__).resolve().parents[2]
Question = tuple[str, Callable[[], object]]
Decoded = TypeVar("Decoded")


class CallStats(NamedTuple):
    """The product code that ran for one request."""

    name: str
    modules: tuple[str, ...]  # paths below the checkout, sorted
    functions: int  # code objects that were called at least once
    calls: int
    depth: int  # product frames on the stack at once, at most


class Recorder:
    """Counts calls of product code in blocks of `record`. Install it before the threads that it has to see begin."""

    def __init__(self) -> None:
        self._active = False
        self._calls: Counter[CodeType] = Counter()
        self._depth = threading.local()
        self._max_depth = 0
        self._paths: dict[str, str] = {}  # of a file: below the checkout, "" for one that is not the product's

    def install(self) -> None:
        """Watch this thread, and threads that start later."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def remove(self) -> None:
        """Stop watching this thread, and threads that start later."""
        threading.setprofile(None)
        sys.setprofile(None)

    @contextmanager
    def record(self) -> Iterator[None]:
        """Count calls of product functions while the block runs."""
        self._calls.clear()
        self._max_depth, self._active = 0, True
        try:
            yield
        finally:
            self._active = False

    def flow(self, name: str) -> CallStats:
        """Return the statistics of the last recording. name: of the request."""
        modules = {self._path(code.co_filename) for code in self._calls}
        return CallStats(name, tuple(sorted(modules)), len(self._calls), self._calls.total(), self._max_depth)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        """Count a call, and the depth of product calls in its thread. The interpreter calls it for each call and
        return.

        frame, event, argument: as of sys.setprofile.
        """
        if event not in ("call", "return") or not self._path(frame.f_code.co_filename):
            return
        depth = getattr(self._depth, "value", 0) + (1 if event == "call" else -1)
        self._depth.value = max(0, depth)
        if event == "call" and self._active:
            self._calls[frame.f_code] += 1
            self._max_depth = max(self._max_depth, depth)

    def _path(self, file: str) -> str:
        """Return a product file's path in the checkout; "" for other files and for __init__.py. The results are
        cached.
        """
        if file not in self._paths:
            path = Path(file).resolve()
            below = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else ""
            is_product = below.partition("/")[0] in LAYERS and path.name != "__init__.py"
            self._paths[file] = below if is_product else ""
        return self._paths[file]


def filter_questions() -> Iterator[Question]:
    """Yield two filter requests of a gang of three pods on eight hosts: the first plans, the second reads the plan.

    Each is (name, function that sends the request). Call them in this order: both use one cluster.
    """
    from hack.bench.placement.simulated import SimulatedCluster, leaves, pod

    cluster = SimulatedCluster(leaves((4, 4)))
    pods = [pod(f"bert-{rank}", 8, gang="bert", minimum=3) for rank in range(3)]
    for each in pods:
        cluster.show(each)
    names = list(cluster.leaf_of)
    yield "filter, a plan is made", lambda: cluster.filter(pods[0], names)
    yield "filter, the plan exists", lambda: cluster.filter(pods[1], names)


def decide_questions() -> Iterator[Question]:
    """Yield (name, function) of one observation and decision about an elastic job in a cluster with free GPUs."""
    import msgspec

    from hack.bench.autoscaler import cluster as objects
    from turnout.autoscaler.cache import Cache
    from turnout.autoscaler.decide import decide
    from turnout.autoscaler.model import Policy
    from turnout.jobs.kinds.registry import KINDS
    from turnout.kube.objects import Node, Pod

    def decode_as(kind: type[Decoded], raw: objects.Raw) -> Decoded:
        return msgspec.json.decode(msgspec.json.encode(raw), type=kind)

    cache, scene, now_s = Cache(KINDS, (objects.GPU,)), objects.Cluster(), 1_768_000_000.0
    for number in range(2):
        cache.put_node(decode_as(Node, objects.node(number)))
    job = scene.put(objects.JOBS, objects.indexed_job(0, 2, 1, 4, 4))
    cache.put_job("Job", job)
    for index in range(2):
        cache.put_pod(decode_as(Pod, objects.worker(job, index, 4, 0)))
    yield "observe and decide, one job", lambda: decide(cache.observation(now_s), Policy(), now_s)


def save_questions() -> Iterator[Question]:
    """Yield (name, function) of two saves to memory, each followed by its write to storage with the commit.

    Call them in this order. The daemon is a thread of this process.
    """
    import torch

    from hack.bench.checkpoint.ours import TurnoutSaver

    with tempfile.TemporaryDirectory() as name, _daemon(Path(name)):
        checkpointer, state = TurnoutSaver(Path(name, "storage")), {"weight": torch.zeros(1024)}
        checkpointer.prepare(state)
        checkpointer.save(1, state, disk=True)
        checkpointer.wait()

        def save(step: int) -> None:
            """Save a step, and wait until it is in storage."""
            checkpointer.save(step, state, disk=True)
            checkpointer.wait()

        # The second save of a round frees the replicas of earlier rounds, later ones do not.
        yield "the second save, to its commit in storage", lambda: save(2)
        yield "a later save, to its commit in storage", lambda: save(3)
        checkpointer.close()


@contextmanager
def _daemon(folder: Path) -> Iterator[None]:
    """Serve a checkpoint daemon in a thread while the block runs, and set the environment variables that lead to it.

    The variables are restored afterwards. folder: for the socket and the memory.
    """
    from turnout.launcher import env
    from turnout.launcher.checkpoint.daemon.daemon import CheckpointDaemon

    loop, path, memory = asyncio.new_event_loop(), folder / "daemon", folder / "memory"
    memory.mkdir()

    async def serve() -> None:
        """Serve the socket until `stopped` is set, then end the daemon."""
        daemon = CheckpointDaemon(memory, "flow", "worker-0", lambda word, facts: None)
        async with await asyncio.start_unix_server(daemon.connections.serve, path):
            await stopped.wait()
        await daemon.end(done=True)

    stopped = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    variables = {env.DAEMON: str(path), env.RUN: "flow", env.WORKER: "worker-0", env.MEMORY: str(memory)}
    before = {name: os.environ.get(name) for name in variables}
    os.environ |= variables
    try:
        while not path.exists():
            time.sleep(0.01)
        yield
    finally:
        for name, text in before.items():
            os.environ.pop(name)
            os.environ |= {name: text} if text is not None else {}
        loop.call_soon_threadsafe(stopped.set)
        thread.join()


QUESTIONS: dict[str, Callable[[], Iterator[Question]]] = {
    "filter": filter_questions,
    "decide": decide_questions,
    "save": save_questions,
}


def flows(kind: str) -> list[CallStats]:
    """Run all requests of one kind (key of QUESTIONS), and return the statistics of each."""
    recorder, found = Recorder(), []
    recorder.install()
    try:
        for name, ask in QUESTIONS[kind]():
            with recorder.record():
                ask()
            found.append(recorder.flow(name))
    finally:
        recorder.remove()
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line for each request; with --modules also the modules that it runs. Return 0.

    argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(
        prog="python -m hack.lint.flow",
        description="Count the modules, functions and calls that one request runs through.",
    )
    parser.add_argument("kind", choices=QUESTIONS, nargs="+")
    parser.add_argument("--modules", action="store_true", help="name the modules")
    options = parser.parse_args(argv)
    print(f"{'':40}{'modules':>9}{'functions':>11}{'calls':>9}{'depth':>7}")
    for kind in options.kind:
        for flow in flows(kind):
            print(f"{flow.name:40}{len(flow.modules):>9}{flow.functions:>11}{flow.calls:>9}{flow.depth:>7}")
            if options.modules:
                print(*(f"  {module}" for module in flow.modules), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

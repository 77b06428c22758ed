"""The cost of saves and persists for training that goes on meanwhile, as a loop on one core.

A step is some matrix products that fit the cache, and an update in place of a part of the state, as an optimizer does.
The loop's thread has one core. What else a saver has may run on both while it persists.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any

from hack.bench.checkpoint.baselines import DcpAsync, Saver
from hack.bench.checkpoint.ours import TurnoutSaver
from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan, SceneResult, took_s
from hack.bench.checkpoint.scenes.stalls import OURS, REUSED, Maker, run_or_record_fault, time_name
from hack.bench.checkpoint.state import bytes_of, differ, make, tensors

PLAIN = "a step alone"
PERSIST = "persist"
TAKEN, ASKED = "saves taken during a persist", "saves asked for during a persist"
_SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]): sum(range(100_000))"
_TRIES = 3
_ATTEMPTS = 8  # saves while one persist is under way


class TrainingLoop:
    """A single-threaded load like that of training, whose optimizer changes the state.

    products, width: number and size of the matrix products in a step. updated: tensors that one step changes.
    """

    def __init__(self, state: dict[str, Any], products: int = 24, width: int = 256, updated: int = 16) -> None:
        import torch

        torch.set_num_threads(1)
        self._left, self._right, self._out = (torch.full((width, width), 1.0 / width) for _ in range(3))
        self._products, self._multiply = products, torch.mm
        self.optimizer = partial_optimizer(
            [tensor for _, tensor in tensors(state) if tensor.is_floating_point()], updated
        )

    def step(self) -> None:
        """Do one step: the matrix products, then the optimizer's step."""
        self._multiply_all()
        self.optimizer.step()

    def _multiply_all(self) -> None:
        for _ in range(self._products):
            self._multiply(self._left, self._right, out=self._out)

    def set_step_length(self, least_s: float) -> None:
        """Choose the number of products of a step so that they take about `least_s` seconds, not less."""
        self._multiply_all()
        took = min(took_s(self._multiply_all) for _ in range(_TRIES))
        self._products = math.ceil(self._products * least_s / took)

    def steps(self, least_s: float, going: Callable[[], bool] = lambda: False) -> tuple[int, float]:
        """Do steps for at least `least_s` seconds, and longer while `going()` is true.

        Returns (number of steps, seconds).
        """
        began_s, done = time.perf_counter(), 0
        while (passed_s := time.perf_counter() - began_s) < least_s or going():
            self.step()
            done += 1
        return done, passed_s


def partial_optimizer(every: list[Any], updated: int) -> Any:
    """Return an optimizer each of whose steps changes the next `updated` tensors of `every`, in a circle."""
    import torch

    class Updating(torch.optim.Optimizer):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__(every, {})
            self._turns = cycle(every)

        def step(self, closure: object = None) -> None:
            for _ in range(updated):
                next(self._turns).mul_(0.999)

    return Updating()


def time_persisting(plan: CheckpointPlan, places: BenchmarkFolders) -> SceneResult:
    """Time steps without a save, and steps while a save is written to disk, for DCP async and for ours.

    Also count how many saves to memory succeed during a write.
    """
    makers: dict[str, Maker] = {REUSED: partial(DcpAsync, reused=True), OURS: TurnoutSaver}
    state = make(plan.small)
    result = SceneResult(bytes_of(state))
    loop = TrainingLoop(state)
    main, others = cores()
    with ExitStack() as ends:
        savers: dict[str, Saver] = {}

        def persist(name: str) -> None:
            """Save the state as the next step, with the saver of this name; ours also to disk."""
            saver, state["step"] = savers[name], state["step"] + 1
            if isinstance(saver, TurnoutSaver):
                saver.save(state["step"], state, disk=True)
            else:
                saver.save(state["step"], state)

        def time_persist(name: str) -> None:
            """Time the loop before and during one save by the saver of this name; create it at the first call."""
            if name not in savers:
                savers[name] = makers[name](places.disk / name)
                ends.callback(savers[name].close)
                savers[name].prepare(state)
            before, before_s = loop.steps(plan.loop_s)
            result.keep(PLAIN, before_s / before)
            persist(name)
            spread(main, main | others)
            done, took_s = loop.steps(0, watch_wait(savers[name]))
            if done:
                result.keep(name, took_s / done)
                result.keep(time_name(name, PERSIST), took_s)
            if name != OURS:
                shutil.rmtree(places.disk / name, ignore_errors=True)

        for _ in range(plan.persists):
            for name in makers:
                run_or_record_fault(name, result, partial(time_persist, name))
        if isinstance(ours := savers.get(OURS), TurnoutSaver):
            run_or_record_fault(OURS, result, partial(_save_during_persist, ours, state, result))
    return result


def _save_during_persist(ours: TurnoutSaver, state: dict[str, Any], result: SceneResult) -> None:
    """Save into memory, at most _ATTEMPTS times, while one save is written to disk, and load each.

    Record in `result` how many ended before the write did (ASKED), and how many of these loaded unchanged (TAKEN).
    """
    requested = accepted = 0
    state["step"] = first = ours.newest_stored_step() + 1
    ours.save(first, state, disk=True)
    for step in range(first + 1, first + 1 + _ATTEMPTS):
        state["step"] = step
        ours.save(step, state)
        if ours.newest_stored_step() >= first:
            break
        requested += 1
        found, loaded = ours.newest()
        accepted += found == step and not differ(state, loaded)
    ours.wait()
    result.figures |= {ASKED: float(requested), TAKEN: float(accepted)}


def watch_wait(saver: Saver) -> Callable[[], bool]:
    """Start a thread that waits for the saver. Return a function that returns True while the thread still waits."""
    thread = threading.Thread(target=saver.wait)
    thread.start()
    return thread.is_alive


def cores() -> tuple[set[int], set[int]]:
    """Return (core of the training loop, the other cores). With a single core both are that one."""
    mine, *others = sorted(os.sched_getaffinity(0))
    return {mine}, {*others} or {mine}


def spread(main: set[int], others: set[int]) -> None:
    """Bind this process' main thread to the cores `main`, and its other threads and its children to `others`.

    Only the threads that exist now are bound.
    """
    threads = [int(each) for each in os.listdir("/proc/self/task")]
    children = [pid for each in threads for pid in _children(each)]
    for each in [*threads, *(int(at) for pid in children for at in _names_in(f"/proc/{pid}/task"))]:
        with suppress(ProcessLookupError):
            os.sched_setaffinity(each, main if each == os.getpid() else others)


def _children(thread: int) -> list[str]:
    """Return the pids of a thread's children as text, [] if the thread has ended."""
    with suppress(OSError):
        return Path(f"/proc/self/task/{thread}/children").read_text().split()
    return []


def _names_in(folder: str) -> list[str]:
    """Return the names in a folder, [] if it does not exist."""
    with suppress(OSError):
        return os.listdir(folder)
    return []


@contextmanager
def keep_busy(others: set[int]) -> Iterator[None]:
    """Run a process that keeps one core of `others` busy while the block runs."""
    process = subprocess.Popen([sys.executable, "-c", _SPIN, str(os.getpid())])
    try:
        os.sched_setaffinity(process.pid, others)
        yield
    finally:
        process.kill()
        process.wait()

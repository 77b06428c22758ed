"""The time that one save adds to a loop on one core.

The save is one with a copy before training continues (torch, Turnout), or with a copy in the background. The forward
and backward part of a step takes several times as long as the copy: a background copy must end before the optimizer
writes. Everything but the loop runs on the other core. A bare memcpy there, of the same bytes, shows how much the
shared memory bandwidth alone slows a loop that does nothing for the copy.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import xxhash

from hack.bench.checkpoint.baselines import DcpAsync, Saver
from hack.bench.checkpoint.ours import TurnoutSaver
from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan, SceneResult, took_s
from hack.bench.checkpoint.scenes.overlap import TrainingLoop, cores, keep_busy, spread, watch_wait
from hack.bench.checkpoint.scenes.stalls import (
    ASIDE,
    EQUAL,
    OURS,
    REUSED,
    floor,
    open_floors,
    run_or_record_fault,
    time_name,
)
from hack.bench.checkpoint.state import bytes_of, make, tensors

BARE = "a bare memcpy on the other core"
BLOCKING = "ours, blocking"
BUSY = "both cores busy"
ALONE, BESIDE = "a step alone", "a step while it is copied"
TIMES_AS_LONG = 3.0  # a step's products, of floor 1
_TRIES = 3


class BareCopy:
    """`copy` in a thread, as a Saver, as if it were a background copy."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy, self._thread = copy, threading.Thread()

    def prepare(self, state: dict[str, Any]) -> None:
        """Do nothing: its memory is allocated already."""

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Start the copy."""
        self._thread = threading.Thread(target=self._copy)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the copy."""
        self._thread.join()

    def load(self) -> dict[str, Any]:
        """Return an empty state: there is nothing to load."""
        return {}

    def close(self) -> None:
        """Do nothing: it holds no resources."""


class BackgroundSaver(BareCopy):
    """Turnout's checkpointer with a background copy. ours: shared with other scenes."""

    def __init__(self, ours: TurnoutSaver, loop: TrainingLoop) -> None:
        self._ours, self._loop = ours, loop

    def save(self, step: int, state: dict[str, Any]) -> None:
        """Start a save, whose copy goes on while training continues."""
        self._ours.save(step, state, overlap=self._loop.optimizer)

    def wait(self) -> None:
        """Wait until the save is hashed."""
        self._ours.wait()

    def load(self) -> dict[str, Any]:
        """Return the newest saved state."""
        return self._ours.load()


class _Windows:
    """Measures a loop with a save, between loops without one. The shortest of all steps counts as a step alone.

    loop: the training. state: that is saved. least_s: seconds of each part. result: gets the times.
    """

    def __init__(self, loop: TrainingLoop, state: dict[str, Any], least_s: float, result: SceneResult) -> None:
        self._loop, self._state, self._least_s, self._result = loop, state, least_s, result
        self._where = cores()
        self._saved: dict[str, list[tuple[float, int]]] = {}

    def save(self, saver: Saver) -> float:
        """Start the save of the next step, then bind each thread to its core. Return the seconds that the binding
        took.
        """
        self._state["step"] += 1
        saver.save(self._state["step"], self._state)
        return took_s(partial(spread, *self._where))

    def measure_save(self, saver: Saver, name: str) -> None:
        """Measure one save: some steps without it, then steps until the saver has finished. name: of the result.

        The time of the step right after the save is recorded at once; `close` records the seconds that the save added.
        """
        steps, alone_s = self._loop.steps(self._least_s)
        self._result.keep(ALONE, alone_s / steps)
        began_s = time.perf_counter()
        spread_s = self.save(saver)
        self._result.keep(time_name(name, BESIDE), took_s(self._loop.step))
        steps, _ = self._loop.steps(self._least_s, watch_wait(saver))
        self._saved.setdefault(name, []).append((time.perf_counter() - began_s - spread_s, steps + 1))

    def check_copy(self, saver: Saver) -> None:
        """Save, do a step, and load. Raises RuntimeError unless the load returns the state from before that step."""
        sums = _sums(self._state)
        self.save(saver)
        step = self._state["step"]
        self._loop.step()
        saver.wait()
        loaded = saver.load()
        if loaded["step"] != step or _sums(loaded) != sums or _sums(self._state) == sums:
            raise RuntimeError("the background copy is not the state that was saved")
        self._result.figures[time_name(OURS, EQUAL)] = 1.0

    def close(self) -> None:
        """Record for each save the seconds that it added: the time of its loop, less its steps at the speed of a
        step alone.
        """
        alone_s = self._result.best_s(ALONE)
        for name, found in self._saved.items():
            for all_s, steps in found:
                self._result.keep(name, all_s - steps * alone_s)


def time_background_copy(plan: CheckpointPlan, places: BenchmarkFolders) -> SceneResult:
    """Time how many seconds one save adds to a training loop, until its copy and all later work are done.

    Savers: ours in the background, ours blocking, DCP async and a bare memcpy; with the second core idle, then busy. A
    load checks afterwards that the background copy has the state from before the next step. A saver of ours that fails
    is recorded with its error.
    """
    state = make(plan.size)
    result, loop, others = SceneResult(bytes_of(state)), TrainingLoop(state), cores()[1]
    windows = _Windows(loop, state, plan.loop_s, result)
    with open_floors(state) as copies, ExitStack() as ends:
        ours = TurnoutSaver(places.memory / "ours")
        savers: dict[str, Saver] = {
            BARE: BareCopy(copies[floor(1)]),
            REUSED: DcpAsync(places.memory / "saved", reused=True),
            BLOCKING: ours,
            OURS: BackgroundSaver(ours, loop),
        }
        spread(*cores())
        loop.set_step_length(TIMES_AS_LONG * min(took_s(copies[floor(1)]) for _ in range(_TRIES)))

        def warm_up(saver: Saver) -> None:
            """Prepare a saver, and save _TRIES times, so that all of its memory has been written to."""
            ends.callback(saver.close)
            saver.prepare(state)
            for _ in range(_TRIES):
                windows.save(saver)
                loop.step()
                saver.wait()

        for name, saver in savers.items():
            run_or_record_fault(name, result, partial(warm_up, saver))
        for is_busy in (False, True):
            with keep_busy(others) if is_busy else nullcontext():
                for _ in range(min(plan.loops, ASIDE) if is_busy else plan.loops):
                    for name, saver in savers.items():
                        result.time(floor(1), copies[floor(1)])
                        run_or_record_fault(
                            name,
                            result,
                            partial(windows.measure_save, saver, time_name(name, BUSY) if is_busy else name),
                        )
                    shutil.rmtree(places.memory / "saved", ignore_errors=True)
        run_or_record_fault(OURS, result, partial(windows.check_copy, savers[OURS]))
        windows.close()
    return result


def _sums(state: dict[str, Any]) -> list[tuple[str, int]]:
    """Return each tensor's name and the hash of its bytes."""
    return [(name, xxhash.xxh3_64_intdigest(each.view(-1).numpy().data)) for name, each in tensors(state)]

"""The time for which a save stops training: the first one of each saver, and later ones. Floors run before each.

A first save is made by a new saver, after prepare; what it made is given back at once. For the later ones the savers
stay. dcp.async_save as shipped keeps nothing between two saves, so its second save is its steady one, in the first
part: beside all that the others keep it would not fit into memory.
"""

from __future__ import annotations

import gc
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from hack.bench.checkpoint.baselines import Dcp, DcpAsync, Saver, TorchSave
from hack.bench.checkpoint.lower_bound import MemoryCopy, WarmMemory
from hack.bench.checkpoint.ours import TurnoutSaver
from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan, SceneResult
from hack.bench.checkpoint.state import ModelSize, bytes_of, differ, make, tensors

Maker = Callable[[Path], Saver]

OURS, UNPREPARED = "ours", "ours, not prepared"
SHIPPED, REUSED = "dcp.async_save", "dcp.async_save, stager reused"
BASELINES: Mapping[str, Maker] = {
    "torch.save": TorchSave,
    "dcp.save": Dcp,
    SHIPPED: partial(DcpAsync, reused=False),
    REUSED: partial(DcpAsync, reused=True),
}
THREADS = (1, 2)
CHANGED = 0.05  # of the bytes, where the rest is frozen
FULL_SAVES = 3  # until each generation has what is frozen
ASIDE = 3  # times of what no target asks for
FROZEN = f"ours, {CHANGED:.0%} not frozen"
TOUCHED = "floor of memory that is new"  # of one generation
FIXED = "ours, as many tensors of few bytes"  # what a save takes beside its bytes
SECOND, PREPARE, EQUAL = "second", "prepare", "equal"


def time_name(name: str, what: str) -> str:
    """Return the name of a time of a saver other than that of its saves. name: of the saver. what: is timed."""
    return f"{name}: {what}"


def floor(threads: int, part: float = 1.0) -> str:
    """Return the name of the copy by so many threads, of the whole state or of a share `part` of it."""
    return f"floor {threads}" if part == 1 else f"floor {threads}, {part:.0%}"


def time_first_saves(plan: CheckpointPlan, places: BenchmarkFolders) -> SceneResult:
    """Time the first save of each saver, and check that a load returns the same bits.

    A saver of ours that fails is recorded with its error. The error of a baseline is raised.
    """
    makers = {**BASELINES, OURS: TurnoutSaver, UNPREPARED: TurnoutSaver}
    _warm_up(makers, places.memory)
    state = make(plan.size)
    result = SceneResult(bytes_of(state))
    with open_floors(state) as copies, _without_garbage_collector():
        for turn in range(plan.firsts):
            for name, maker in makers.items():
                if name == UNPREPARED and turn >= ASIDE:
                    continue
                _time_copies(copies, result)
                if name == OURS:
                    result.time(TOUCHED, partial(_write_zeros, places.memory / "touched", result.state_bytes))
                run_or_record_fault(
                    name, result, partial(_time_first_save, name, maker, places.memory / "saved", state, turn, result)
                )
                shutil.rmtree(places.memory / "saved", ignore_errors=True)
    return result


def _write_zeros(path: Path, size_bytes: int) -> None:
    """Create a file of `size_bytes` in memory and delete it, so that the machine's host has this much memory ready."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(file, 0, size_bytes)
    finally:
        os.close(file)
        path.unlink()


def _time_first_save(
    name: str, maker: Maker, folder: Path, state: dict[str, Any], turn: int, result: SceneResult
) -> None:
    """Time the first save of a new saver, and store the time in `result`.

    name: of the saver, which `maker` creates with `folder`. turn: number of the round; in round 0 also check what the
    saver loads. Raises RuntimeError if that differs.
    """
    saver = maker(folder)
    with ExitStack() as ends:
        ends.callback(saver.close)
        if name != UNPREPARED:
            result.time(time_name(name, PREPARE), lambda: saver.prepare(state))
        _change(state)
        result.time(name, lambda: saver.save(state["step"], state))
        saver.wait()
        if name == SHIPPED and turn < ASIDE:
            _change(state)
            result.time(time_name(name, SECOND), lambda: saver.save(state["step"], state))
            saver.wait()
        if turn == 0:
            _check_load(name, saver, state, result)


def time_steady_saves(plan: CheckpointPlan, places: BenchmarkFolders) -> SceneResult:
    """Time saves into memory that is allocated already, by each saver. Return the times by the saver's name.

    Saves of a partly frozen state and of a tiny state are timed too. A saver of ours that fails is recorded with its
    error. The error of a baseline is raised.
    """
    makers = {name: maker for name, maker in BASELINES.items() if name != SHIPPED}
    makers |= {OURS: TurnoutSaver}
    _warm_up(makers, places.memory)
    state = make(plan.size)
    result = SceneResult(bytes_of(state))
    savers: dict[str, Saver] = {}
    with open_floors(state) as copies, _without_garbage_collector(), ExitStack() as ends:

        def save(name: str, timed: bool) -> None:
            """Change the state, save it and await the save. timed: keep the seconds until `save` returned."""
            if name not in savers:
                savers[name] = makers[name](places.memory / name)
                ends.callback(savers[name].close)
                savers[name].prepare(state)
            _change(state)
            began_s = time.perf_counter()
            savers[name].save(state["step"], state)
            if timed:
                result.keep(name, time.perf_counter() - began_s)
            savers[name].wait()

        for turn in range(-1, plan.steady):  # one more: whoever keeps memory takes it then
            for name in makers:
                _time_copies(copies, result)
                run_or_record_fault(name, result, partial(save, name, turn >= 0))
                if name in BASELINES:  # in tmpfs: all of them at once would not fit
                    shutil.rmtree(places.memory / name, ignore_errors=True)
        if OURS in savers:
            run_or_record_fault(OURS, result, lambda: _check_load(OURS, savers[OURS], state, result))
        ends.close()  # the memory of all these and of one more would be too much
        run_or_record_fault(
            FROZEN, result, partial(_time_partly_frozen, state, copies, places.memory / FROZEN, plan.steady, result)
        )
        run_or_record_fault(
            FIXED, result, partial(_time_fixed_cost, plan.size.layers, places.memory / "fixed", plan.steady, result)
        )
    return result


def _time_fixed_cost(layers: int, folder: Path, times: int, result: SceneResult) -> None:
    """Time `times` saves of a state with as many tensors and hardly any bytes: the fixed cost of a save.

    layers: number of the model's layers, which gives the number of tensors. folder: for the saver.
    """
    state = make(ModelSize(8, layers, 8))
    with ExitStack() as ends:
        saver = TurnoutSaver(folder)
        ends.callback(saver.close)
        saver.prepare(state)
        for _ in range(times):
            _change(state)
            result.time(FIXED, lambda: saver.save(state["step"], state))
            saver.wait()
        _check_load(FIXED, saver, state, result)


def _time_partly_frozen(
    state: dict[str, Any], copies: Mapping[str, Callable[[], None]], folder: Path, times: int, result: SceneResult
) -> None:
    """Time `times` saves of a state in which only a part changes, after FULL_SAVES that copy everything.

    copies: the bare copies, which are timed between the saves. folder: for the saver.
    """
    named = list(tensors(state))
    live = last_tensors([tensor for _, tensor in named], CHANGED)
    with ExitStack() as ends:
        saver = TurnoutSaver(
            folder, frozenset(name for name, tensor in named if not any(tensor is each for each in live))
        )
        ends.callback(saver.close)
        saver.prepare(state)
        for turn in range(-FULL_SAVES, times):
            _time_copies(copies, result)
            state["step"] += 1
            for each in live:
                each.reshape(-1)[:1].add_(1)
            began_s = time.perf_counter()
            saver.save(state["step"], state)
            if turn >= 0:
                result.keep(FROZEN, time.perf_counter() - began_s)
            saver.wait()
        _check_load(FROZEN, saver, state, result)


def _check_load(name: str, saver: Saver, state: dict[str, Any], result: SceneResult) -> None:
    """Raise RuntimeError unless a load returns this state; else record that it is equal. name: of the saver."""
    if at := differ(state, saver.load()):
        raise RuntimeError(f"{name} loads a state that differs from the saved one at {at}")
    result.figures[time_name(name, EQUAL)] = 1.0


@contextmanager
def open_floors(state: Mapping[str, Any]) -> Iterator[dict[str, Callable[[], None]]]:
    """Yield functions that copy a state, or its changing part, to memory, by name: the lower bounds of a save.

    The memory and the threads are freed after the block. Each function was called once before. Raises RuntimeError if
    the copy of the whole state by the most threads has other bytes.
    """
    every = [tensor for _, tensor in tensors(state)]
    with ExitStack() as ends:
        warm = ends.enter_context(WarmMemory(bytes_of(state)))
        copies = {floor(threads): MemoryCopy(every, warm.address, threads) for threads in THREADS}
        copies[floor(THREADS[-1], CHANGED)] = MemoryCopy(last_tensors(every, CHANGED), warm.address, THREADS[-1])
        for name, copy in copies.items():
            ends.callback(copy.close)
            copy()
            if name == floor(THREADS[-1]) and not warm.holds(every):
                raise RuntimeError("the floor's copy differs from the state")
        yield dict(copies)


def last_tensors(every: list[Any], share: float) -> list[Any]:
    """Return the fewest last tensors that together have at least this share of all bytes. every: all tensors, in order.

    The last tensor of `every` comes first.
    """
    chosen: list[Any] = []
    least_bytes = share * sum(tensor.nbytes for tensor in every)
    while sum(tensor.nbytes for tensor in chosen) < least_bytes:
        chosen.append(every[-1 - len(chosen)])
    return chosen


def _time_copies(copies: Mapping[str, Callable[[], None]], result: SceneResult) -> None:
    """Call each copy once and record its time."""
    for name, copy in copies.items():
        result.time(name, copy)


def run_or_record_fault(name: str, result: SceneResult, call: Callable[[], object]) -> None:
    """Call a function for the saver `name`, then collect garbage.

    If `name` is in BASELINES, its error is raised. Another error is written into result.faults, and all later calls for
    this name are skipped.
    """
    if name in result.faults:
        return
    try:
        call()
    except Exception as error:
        if name in BASELINES:
            raise
        result.faults[name] = f"{type(error).__name__}: {error}"
    gc.collect()


def _warm_up(makers: Mapping[str, Maker], memory: Path) -> None:
    """Save and load a tiny state with each saver, so that imports and thread starts do not count later.

    makers: of the savers, by name. memory: folder for what they save.
    """
    state = make(ModelSize(8, 1, 8))

    def warm(maker: Maker) -> None:
        """Use one saver once, and close it."""
        saver = maker(memory / "warm")
        with ExitStack() as ends:
            ends.callback(saver.close)
            saver.prepare(state)
            saver.save(0, state)
            saver.wait()
            saver.load()

    for name, maker in makers.items():
        run_or_record_fault(name, SceneResult(), partial(warm, maker))
        shutil.rmtree(memory / "warm", ignore_errors=True)


@contextmanager
def _without_garbage_collector() -> Iterator[None]:
    """Collect garbage now, and switch the collector off while the block runs."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _change(state: dict[str, Any]) -> None:
    """Add 1 to the step and to two numbers of the model, so that two saves differ."""
    state["step"] += 1
    for at in ("words", "last.bias"):
        state["model"][at].reshape(-1)[:1].add_(1.0)

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
from hack.bench.checkpoint.lower_bound import Copy, Warm
from hack.bench.checkpoint.ours import Ours
from hack.bench.checkpoint.plan import Places, Plan, SceneResult
from hack.bench.checkpoint.state import Size, bytes_of, differ, make, tensors

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


def of(name: str, what: str) -> str:
    """Name a time of a saver other than that of its saves."""
    return f"{name}: {what}"


def floor(threads: int, part: float = 1.0) -> str:
    """Name the copy of the whole state, or of a part."""
    return f"floor {threads}" if part == 1 else f"floor {threads}, {part:.0%}"


def first(plan: Plan, places: Places) -> SceneResult:
    """Time the first save of each saver, and check that a load returns the same bits."""
    makers = {**BASELINES, OURS: Ours, UNPREPARED: Ours}
    _warmed(makers, places.memory)
    state = make(plan.size)
    seen = SceneResult(bytes_of(state))
    with floors(state) as copies, _quiet():
        for turn in range(plan.firsts):
            for name, maker in makers.items():
                if name == UNPREPARED and turn >= ASIDE:
                    continue
                _copied(copies, seen)
                if name == OURS:
                    seen.timed(TOUCHED, partial(_touched, places.memory / "touched", seen.state_bytes))
                tried(name, seen, partial(_first, name, maker, places.memory / "saved", state, turn, seen))
                shutil.rmtree(places.memory / "saved", ignore_errors=True)
    return seen


def _touched(path: Path, size_bytes: int) -> None:
    """Write zeros to a file in memory, so that the machine's host has this much memory ready."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.posix_fallocate(file, 0, size_bytes)
    finally:
        os.close(file)
        path.unlink()


def _first(name: str, maker: Maker, folder: Path, state: dict[str, Any], turn: int, seen: SceneResult) -> None:
    """Time the first save of a new saver. In round 0 also compare what it loads."""
    saver = maker(folder)
    with ExitStack() as ends:
        ends.callback(saver.close)
        if name != UNPREPARED:
            seen.timed(of(name, PREPARE), lambda: saver.prepare(state))
        _change(state)
        seen.timed(name, lambda: saver.save(state["step"], state))
        saver.wait()
        if name == SHIPPED and turn < ASIDE:
            _change(state)
            seen.timed(of(name, SECOND), lambda: saver.save(state["step"], state))
            saver.wait()
        if turn == 0:
            _compared(name, saver, state, seen)


def steady(plan: Plan, places: Places) -> SceneResult:
    """Time saves into memory that is allocated already."""
    makers = {name: maker for name, maker in BASELINES.items() if name != SHIPPED}
    makers |= {OURS: Ours}
    _warmed(makers, places.memory)
    state = make(plan.size)
    seen = SceneResult(bytes_of(state))
    savers: dict[str, Saver] = {}
    with floors(state) as copies, _quiet(), ExitStack() as ends:

        def save(name: str, timed: bool) -> None:
            if name not in savers:
                savers[name] = makers[name](places.memory / name)
                ends.callback(savers[name].close)
                savers[name].prepare(state)
            _change(state)
            began_s = time.perf_counter()
            savers[name].save(state["step"], state)
            if timed:
                seen.keep(name, time.perf_counter() - began_s)
            savers[name].wait()

        for turn in range(-1, plan.steady):  # one more: whoever keeps memory takes it then
            for name in makers:
                _copied(copies, seen)
                tried(name, seen, partial(save, name, turn >= 0))
                if name in BASELINES:  # in tmpfs: all of them at once would not fit
                    shutil.rmtree(places.memory / name, ignore_errors=True)
        if OURS in savers:
            tried(OURS, seen, lambda: _compared(OURS, savers[OURS], state, seen))
        ends.close()  # the memory of all these and of one more would be too much
        tried(FROZEN, seen, partial(_frozen, state, copies, places.memory / FROZEN, plan.steady, seen))
        tried(FIXED, seen, partial(_fixed, plan.size.layers, places.memory / "fixed", plan.steady, seen))
    return seen


def _fixed(layers: int, folder: Path, times: int, seen: SceneResult) -> None:
    """Time saves of a state with as many tensors and hardly any bytes: the fixed cost of a save."""
    state = make(Size(8, layers, 8))
    with ExitStack() as ends:
        saver = Ours(folder)
        ends.callback(saver.close)
        saver.prepare(state)
        for _ in range(times):
            _change(state)
            seen.timed(FIXED, lambda: saver.save(state["step"], state))
            saver.wait()
        _compared(FIXED, saver, state, seen)


def _frozen(
    state: dict[str, Any], copies: Mapping[str, Callable[[], None]], folder: Path, times: int, seen: SceneResult
) -> None:
    """Time saves of a state of which only a part changes, once each generation has the rest."""
    named = list(tensors(state))
    live = part([tensor for _, tensor in named], CHANGED)
    with ExitStack() as ends:
        saver = Ours(folder, frozenset(name for name, tensor in named if not any(tensor is each for each in live)))
        ends.callback(saver.close)
        saver.prepare(state)
        for turn in range(-FULL_SAVES, times):
            _copied(copies, seen)
            state["step"] += 1
            for each in live:
                each.reshape(-1)[:1].add_(1)
            began_s = time.perf_counter()
            saver.save(state["step"], state)
            if turn >= 0:
                seen.keep(FROZEN, time.perf_counter() - began_s)
            saver.wait()
        _compared(FROZEN, saver, state, seen)


def _compared(name: str, saver: Saver, state: dict[str, Any], seen: SceneResult) -> None:
    if at := differ(state, saver.load()):
        raise RuntimeError(f"{name} loads another {at} than was saved")
    seen.figures[of(name, EQUAL)] = 1.0


@contextmanager
def floors(state: Mapping[str, Any]) -> Iterator[dict[str, Callable[[], None]]]:
    """Time copies of a state by one and by two threads, and of its changing part.

    Each is warmed up and checked first.
    """
    every = [tensor for _, tensor in tensors(state)]
    with ExitStack() as ends:
        warm = ends.enter_context(Warm(bytes_of(state)))
        copies = {floor(threads): Copy(every, warm.address, threads) for threads in THREADS}
        copies[floor(THREADS[-1], CHANGED)] = Copy(part(every, CHANGED), warm.address, THREADS[-1])
        for name, copy in copies.items():
            ends.callback(copy.close)
            copy()
            if name == floor(THREADS[-1]) and not warm.holds(every):
                raise RuntimeError("the floor copies something else")
        yield dict(copies)


def part(every: list[Any], share: float) -> list[Any]:
    """Return the last tensors that together have at least this share of all bytes; at least one tensor."""
    chosen: list[Any] = []
    least_bytes = share * sum(tensor.nbytes for tensor in every)
    while sum(tensor.nbytes for tensor in chosen) < least_bytes:
        chosen.append(every[-1 - len(chosen)])
    return chosen


def _copied(copies: Mapping[str, Callable[[], None]], seen: SceneResult) -> None:
    for name, copy in copies.items():
        seen.timed(name, copy)


def tried(name: str, seen: SceneResult, call: Callable[[], object]) -> None:
    """Run a saver's call. A fault of Turnout is recorded and it is not tried again; a baseline's fault is raised."""
    if name in seen.faults:
        return
    try:
        call()
    except Exception as error:
        if name in BASELINES:
            raise
        seen.faults[name] = f"{type(error).__name__}: {error}"
    gc.collect()


def _warmed(makers: Mapping[str, Maker], memory: Path) -> None:
    """Save and load a tiny state with each saver, so that imports and thread starts do not count."""
    state = make(Size(8, 1, 8))

    def warm(maker: Maker) -> None:
        saver = maker(memory / "warm")
        with ExitStack() as ends:
            ends.callback(saver.close)
            saver.prepare(state)
            saver.save(0, state)
            saver.wait()
            saver.load()

    for name, maker in makers.items():
        tried(name, SceneResult(), partial(warm, maker))
        shutil.rmtree(memory / "warm", ignore_errors=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the garbage collector off between two times."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _change(state: dict[str, Any]) -> None:
    """Change the state as a training step does, just enough to tell two saves apart."""
    state["step"] += 1
    for at in ("words", "last.bias"):
        state["model"][at].reshape(-1)[:1].add_(1.0)

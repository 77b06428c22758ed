"""The time in which W' ranks load what W ranks saved: the floors, DCP from tmpfs, and Turnout from there.

Tensors are cut along their first dimension (DTensor). All ranks are of one process, which is each of them in turn: the
time is that of all ranks together, none of which waits for another; what processes would take from each other is not
in it. A floor is the memcpy of each rank's part out of warm shared memory, rank by rank, by one or two threads.
Beside that, what one rank takes to have its own shard back in new memory, and what torch and safetensors do.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from inspect import signature
from itertools import groupby
from pathlib import Path
from typing import Any

from hack.bench.checkpoint.lower_bound import MemoryCopy, WarmMemory
from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan, SceneResult
from hack.bench.checkpoint.scenes.stalls import EQUAL, OURS, THREADS, floor, open_floors, run_or_record_fault, time_name
from hack.bench.checkpoint.state import bytes_of, make, tensors

DCP, NOTHING = "dcp.load", "dcp's plans alone"
OWN = "in its own world"
OTHERS = ("torch.load", "torch.load, mapped and copied", "safetensors, copied")
MAX_RANKS = 8
Shards = Sequence[dict[str, Any]]
Call = Callable[[dict[str, Any]], object]


def pair(name: str, saved: int, loads: int) -> str:
    """Return the name of a result. name: of what was timed. saved, loads: numbers of ranks that saved and that load."""
    return f"{name}, {saved} -> {loads}"


def time_loads(plan: CheckpointPlan, places: BenchmarkFolders) -> SceneResult:
    """Save in each world and load in others. Return the times, and the figure EQUAL if none of our loads failed or
    gave other bytes.
    """
    full_tensors = {name: tensor for name, tensor in tensors(make(plan.wide)) if tensor.dim()}
    result = SceneResult(bytes_of(full_tensors))
    for saved, pairs in groupby(sorted(plan.worlds), key=lambda each: each[0]):
        folder = places.memory / f"of-{saved}"
        states = [shard_tensors(full_tensors, rank, saved) for rank in range(saved)]
        run_or_record_fault(DCP, result, partial(save, states, folder / "dcp"))
        run_or_record_fault(OURS, result, partial(save_ours, states, folder / "ours"))
        for _, loads in pairs:
            _time_pair(full_tensors, (saved, loads), folder, plan.loads, result)
        shutil.rmtree(folder)
    _time_own_loads(full_tensors, places.memory / "own", plan.loads, result)
    if OURS not in result.faults:
        result.figures[time_name(OURS, EQUAL)] = 1.0
    return result


def _time_pair(
    full_tensors: Mapping[str, Any], worlds: tuple[int, int], folder: Path, turns: int, result: SceneResult
) -> None:
    """Time loads in one world of the state that another world saved, `turns` times.

    worlds: (ranks that saved, ranks that load). folder: of the saves. full_tensors: the saved state, by name. result:
    gets the times. A first, untimed round compares the bytes; `run_or_record_fault` handles a difference.
    """
    import torch

    saved, loads = worlds
    empty = {name: torch.zeros_like(tensor) for name, tensor in full_tensors.items()}
    states = [shard_tensors(empty, rank, loads) for rank in range(loads)]
    mine = [[each.to_local() for each in state.values()] for state in states]
    with ExitStack() as ends:
        warm = ends.enter_context(WarmMemory(max(sum(each.nbytes for each in part) for part in mine)))
        floors = {
            floor(threads): [MemoryCopy(part, warm.address, threads, backwards=True) for part in mine]
            for threads in THREADS
        }
        for copies in floors.values():
            for copy in copies:
                ends.callback(copy.close)

        def load(name: str, call: Call, timed: bool) -> None:
            """Load in each rank in turn; time that, or check the bytes. Raises RuntimeError if they differ."""
            for tensor in empty.values():
                tensor.reshape(-1)[:: 1 << 16].fill_(-1)
            if timed:
                result.time(pair(name, saved, loads), lambda: [call(state) for state in states])
            else:
                for state in states:
                    call(state)
                if name != NOTHING and (
                    other := [key for key in full_tensors if not torch.equal(full_tensors[key], empty[key])]
                ):
                    raise RuntimeError(f"{pair(name, saved, loads)}: {other[0]} is not what was saved")

        for turn in range(-1, turns):
            for name, copies in floors.items():
                result.time(pair(name, saved, loads), lambda copies=copies: [copy() for copy in copies])  # type: ignore[misc]
            for name, call in load_functions(folder).items():
                run_or_record_fault(name, result, partial(load, name, call, turn >= 0))


def load_functions(folder: Path) -> Mapping[str, Call]:
    """Return the functions that load a rank's state dict, by name. Each load has a new reader, as in a new process.

    NOTHING does all of DCP's work but reading.
    """
    import torch.distributed.checkpoint as dcp

    from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader

    class Nothing(dcp.FileSystemReader):  # type: ignore[misc, unused-ignore]
        def read_data(self, plan: Any, planner: Any) -> Any:
            """Read nothing, and return a finished future."""
            import torch

            done: Any = torch.futures.Future()
            done.set_result(None)
            return done

    return {
        DCP: lambda state: dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True),
        NOTHING: lambda state: dcp.load(state, storage_reader=Nothing(folder / "dcp"), no_dist=True),
        OURS: lambda state: dcp.load(state, storage_reader=FlashStorageReader(folder / "ours"), no_dist=True),
    }


def _time_own_loads(full_tensors: Mapping[str, Any], folder: Path, turns: int, result: SceneResult) -> None:
    """Time loads of the whole state by one rank, `turns` times, each into new memory, as in a process that starts.

    folder: of the saves, which is removed afterwards. result: gets the times. A first, untimed round checks the bytes.
    """
    import torch

    def load(name: str, call: Callable[[], Mapping[str, Any]], timed: bool) -> None:
        """Load into new memory; time that, or in the untimed round check the bytes.

        Raises RuntimeError if they differ from the saved state.
        """
        began_s = time.perf_counter()
        found = call()
        if timed:
            result.keep(time_name(name, OWN), time.perf_counter() - began_s)
        elif other := [key for key in full_tensors if not torch.equal(full_tensors[key], found[key])]:
            raise RuntimeError(f"{time_name(name, OWN)}: {other[0]} is not what was saved")

    with open_floors(full_tensors) as copies, ExitStack() as ends:
        calls = _own_load_functions(dict(full_tensors), folder, ends)
        for turn in range(-1, turns):
            for name in map(floor, THREADS):
                result.time(time_name(name, OWN), copies[name])
            for name, call in calls.items():
                run_or_record_fault(name, result, partial(load, name, call, turn >= 0))
    shutil.rmtree(folder)


def _own_load_functions(
    full_tensors: dict[str, Any], folder: Path, ends: ExitStack
) -> Mapping[str, Callable[[], Mapping[str, Any]]]:
    """Save the state in each way into the folder. Return, by name, the function that loads it into new memory.

    ends: closes our checkpointer later. full_tensors: the state, by name.
    """
    import safetensors.torch
    import torch

    from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer

    (folder / "memory").mkdir(parents=True)
    (folder / "none").mkdir()
    files = folder / "state.pt", folder / "state.safetensors"
    torch.save(full_tensors, files[0])
    safetensors.torch.save_file(full_tensors, files[1])
    saver, loader = (
        Checkpointer(folder, generations=2, environ={**os.environ, "TURNOUT_MEMORY_DIR": str(folder / word)})
        for word in ("memory", "none")
    )
    saver.save(1, full_tensors)
    saver.wait()
    saver.close()
    ends.callback(loader.close)

    def ours() -> Any:
        found = loader.load()
        return found.state if found else {}

    def copy(state: Mapping[str, Any]) -> Mapping[str, Any]:
        return {name: each.clone() for name, each in state.items()}

    return {
        OTHERS[0]: lambda: torch.load(files[0], weights_only=True),
        OTHERS[1]: lambda: copy(torch.load(files[0], weights_only=True, mmap=True)),
        OTHERS[2]: lambda: copy(safetensors.torch.load_file(files[1])),
        OURS: ours,
    }


def shard_tensors(full_tensors: Mapping[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """Return this rank's part of each tensor, cut along dimension 0, as DTensors.

    They are views of `full_tensors`, without a copy. A part is empty if there is no chunk for this rank. ranks: number
    of ranks.
    """
    from torch.distributed.tensor import DTensor, Shard

    mesh = _mesh(rank, ranks)

    def cut(tensor: Any) -> Any:
        """Return this rank's chunk of a tensor as a DTensor."""
        chunks = tensor.chunk(ranks)
        mine = chunks[rank] if rank < len(chunks) else tensor[:0]
        return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())

    return {name: cut(tensor) for name, tensor in full_tensors.items()}


def _mesh(rank: int, ranks: int) -> Any:
    """Return the device mesh of one rank, without other processes.

    torch 2.6 asks a process group for the rank, so a group that sends nothing exists meanwhile.
    """
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    places = list(range(ranks))
    if "_rank" in signature(DeviceMesh.__init__).parameters:
        return DeviceMesh("cpu", places, _init_backend=False, _rank=rank)
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=ranks)
    try:
        return DeviceMesh("cpu", places, _init_backend=False)
    finally:
        dist.destroy_process_group()


def save(states: Shards, folder: Path) -> None:
    """Save by dcp.save in all ranks of a world, in this process. states: of each rank."""
    import torch.distributed.checkpoint as dcp

    _save(states, [dcp.FileSystemWriter(folder) for _ in states], dcp.DefaultSavePlanner)


def save_ours(states: Shards, folder: Path) -> None:
    """Save with Turnout's writer in all ranks, and wait until the step is committed; then free its memory.

    states: of each rank. folder: gets the step 1.
    """
    from turnout.launcher.checkpoint.dcp.reader import memories
    from turnout.launcher.checkpoint.dcp.writer import FlashSavePlanner, FlashStorageWriter

    writers = [FlashStorageWriter(folder, step=1, generations=2) for _ in states]
    try:
        _save(states, writers, FlashSavePlanner)
        for writer in reversed(writers):  # the first one waits for the step to be committed
            writer.wait()
    finally:
        memories.close()


def _save(states: Shards, writers: Sequence[Any], planner: Callable[[], Any]) -> None:
    """Do what dcp.save does: the local part in each rank, and in between the global plan on rank 0.

    states, writers: by rank. planner: makes a rank's planner.
    """
    planners = [planner() for _ in states]
    plans = []
    for rank, (state, writer, own) in enumerate(zip(states, writers, planners, strict=True)):
        writer.reset()
        own.set_up_planner(state, writer.storage_meta(), rank == 0)
        writer.set_up_storage_writer(rank == 0)
        plans.append(writer.prepare_local_plan(own.create_local_plan()))
    plans, metadata = planners[0].create_global_plan(plans)
    results = []
    for plan, writer, own in zip(writers[0].prepare_global_plan(plans), writers, planners, strict=True):
        results.append(writer.write_data(own.finish_plan(plan), own).wait())
    writers[0].finish(metadata, results)

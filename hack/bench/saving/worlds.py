"""How long W' ranks take to load what W ranks saved: the floors, DCP from tmpfs, and ours from there.

Tensors are cut along their first dimension (DTensor). All ranks are of one process, which is each of them in turn: the
time is that of all ranks together, none of which waits for another; what processes would take from each other is not
in it. A floor is the memcpy of each rank's part out of warm shared memory, rank by rank, by one or two threads.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from hack.bench.saving.floors import Copy, Warm
from hack.bench.saving.plan import Places, Plan, Seen
from hack.bench.saving.stalls import EQUAL, OURS, THREADS, floor, of, tried
from hack.bench.saving.state import bytes_of, make, tensors

DCP, NOTHING = "dcp.load", "dcp's plans alone"
MOST_RANKS = 8
Shards = Sequence[dict[str, Any]]
Call = Callable[[dict[str, Any]], object]


def pair(name: str, saved: int, loads: int) -> str:
    """Name two world sizes, and what was done in them."""
    return f"{name}, {saved} -> {loads}"


def loaded(plan: Plan, places: Places) -> Seen:
    """Save in each world, load in others; ours has to give the bytes that dcp.load gives, those that were saved."""
    whole = {name: tensor for name, tensor in tensors(make(plan.wide)) if tensor.dim()}
    seen = Seen(bytes_of(whole))
    for saved, pairs in groupby(sorted(plan.worlds), key=lambda each: each[0]):
        folder = places.memory / f"of-{saved}"
        states = [sharded(whole, rank, saved) for rank in range(saved)]
        tried(DCP, seen, partial(save, states, folder / "dcp"))
        tried(OURS, seen, partial(save_ours, states, folder / "ours"))
        for _, loads in pairs:
            _pair(whole, (saved, loads), folder, plan.loads, seen)
        shutil.rmtree(folder)
    if OURS not in seen.faults:
        seen.figures[of(OURS, EQUAL)] = 1.0
    return seen


def _pair(whole: Mapping[str, Any], worlds: tuple[int, int], folder: Path, turns: int, seen: Seen) -> None:
    import torch

    saved, loads = worlds
    empty = {name: torch.zeros_like(tensor) for name, tensor in whole.items()}
    states = [sharded(empty, rank, loads) for rank in range(loads)]
    mine = [[each.to_local() for each in state.values()] for state in states]
    with ExitStack() as ends:
        warm = ends.enter_context(Warm(max(sum(each.nbytes for each in part) for part in mine)))
        floors = {
            floor(threads): [Copy(part, warm.address, threads, backwards=True) for part in mine] for threads in THREADS
        }
        for copies in floors.values():
            for copy in copies:
                ends.callback(copy.close)

        def load(name: str, call: Call, timed: bool) -> None:
            for tensor in empty.values():
                tensor.reshape(-1)[:: 1 << 16].fill_(-1)
            if timed:
                seen.timed(pair(name, saved, loads), lambda: [call(state) for state in states])
            else:
                for state in states:
                    call(state)
                if name != NOTHING and (other := [key for key in whole if not torch.equal(whole[key], empty[key])]):
                    raise RuntimeError(f"{pair(name, saved, loads)}: {other[0]} is not what was saved")

        for turn in range(-1, turns):
            for name, copies in floors.items():
                seen.timed(pair(name, saved, loads), lambda copies=copies: [copy() for copy in copies])  # type: ignore[misc]
            for name, call in ways(folder).items():
                tried(name, seen, partial(load, name, call, turn >= 0))


def ways(folder: Path) -> Mapping[str, Call]:
    """How a rank loads. A reader is made for each load, as each process has to."""
    import torch.distributed.checkpoint as dcp

    from launcher.shell.saving.dcp import FlashStorageReader

    class Nothing(dcp.FileSystemReader):  # type: ignore[misc, unused-ignore]
        def read_data(self, plan: Any, planner: Any) -> Any:
            import torch

            done: Any = torch.futures.Future()
            done.set_result(None)
            return done

    return {
        DCP: lambda state: dcp.load(state, checkpoint_id=folder / "dcp", no_dist=True),
        NOTHING: lambda state: dcp.load(state, storage_reader=Nothing(folder / "dcp"), no_dist=True),
        OURS: lambda state: dcp.load(state, storage_reader=FlashStorageReader(folder / "ours"), no_dist=True),
    }


def sharded(whole: Mapping[str, Any], rank: int, ranks: int) -> dict[str, Any]:
    """A rank's part of tensors, without copying them."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = DeviceMesh("cpu", list(range(ranks)), _init_backend=False, _rank=rank)

    def cut(tensor: Any) -> Any:
        chunks = tensor.chunk(ranks)
        mine = chunks[rank] if rank < len(chunks) else tensor[:0]
        return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())

    return {name: cut(tensor) for name, tensor in whole.items()}


def save(states: Shards, folder: Path) -> None:
    """dcp.save, of all ranks."""
    import torch.distributed.checkpoint as dcp

    _save(states, [dcp.FileSystemWriter(folder) for _ in states], dcp.DefaultSavePlanner)


def save_ours(states: Shards, folder: Path) -> None:
    """The same by our writer, until it is all in the folder. Its memory is given back."""
    from launcher.shell.saving.dcp import FlashSavePlanner, FlashStorageWriter
    from launcher.shell.saving.dcp_reading import memories

    writers = [FlashStorageWriter(folder, step=1, generations=2) for _ in states]
    try:
        _save(states, writers, FlashSavePlanner)
        for writer in reversed(writers):  # the first one waits for the step to be committed
            writer.wait()
    finally:
        memories.close()


def _save(states: Shards, writers: Sequence[Any], planner: Callable[[], Any]) -> None:
    """What dcp.save does in each rank, and its coordinator between them."""
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

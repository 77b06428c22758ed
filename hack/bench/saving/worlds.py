"""How long each of W' ranks takes for its part of what W ranks saved: the floor, DCP from tmpfs, and ours.

Tensors are cut along their first dimension (DTensor). A rank is a process with one thread; what counts in a turn is
the slowest rank. The floor is the memcpy of each rank's part, by all ranks at once, out of warm shared memory.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hack.bench.saving.floors import Copy, Warm
from hack.bench.saving.plan import Places, Plan, Seen, took_s
from hack.bench.saving.state import Size, make, tensors

FLOOR, DCP = "floor", "dcp.load"
LIMIT_S = 120


def pair(saved: int, loads: int) -> str:
    """Name two world sizes."""
    return f"{saved} -> {loads}"


def loaded(plan: Plan, places: Places) -> Seen:
    """Save in each world, load in the other. Ours has nothing yet that loads so."""
    seen = Seen(sum(tensor.nbytes for _, tensor in tensors(make(plan.small))))
    for saved, loads in plan.worlds:
        folder = places.memory / f"{saved}-{loads}"
        folder.mkdir()
        world(saved, folder, _save, plan.small)
        world(loads, folder, _load, plan.small, plan.loads)
        told = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(loads)]
        for name in (FLOOR, DCP):
            times = zip(*(each[name] for each in told), strict=True)
            seen.times_s[f"{name}, {pair(saved, loads)}"] = [max(each) for each in times]
        if not all(each["equal"] for each in told):
            raise RuntimeError(f"dcp.load gives other bytes than were saved ({pair(saved, loads)})")
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    return seen


def world(ranks: int, folder: Path, work: Callable[..., None], *arguments: object) -> None:
    """Run it in so many processes that form a gloo world, and wait for their end. Raises RuntimeError if one fails."""
    store = folder / f"store-{work.__name__}"
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=_rank, args=(rank, ranks, store, folder, work, arguments), daemon=True)
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(LIMIT_S)
        if process.exitcode != 0:
            for each in processes:
                each.kill()
            raise RuntimeError(f"a rank of {ranks} ended with {process.exitcode}")


def _rank(
    rank: int, ranks: int, store: Path, folder: Path, work: Callable[..., None], arguments: Sequence[object]
) -> None:
    import torch
    import torch.distributed as dist

    signal.alarm(LIMIT_S)
    try:
        torch.set_num_threads(1)
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
        work(rank, ranks, folder, *arguments)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        raise


def sharded(size: Size, seed: int = 7) -> dict[str, Any]:
    """The tensors of a state, cut along their first dimension for this process' rank."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))

    def cut(tensor: Any) -> Any:
        chunks = tensor.chunk(ranks)
        mine = chunks[rank].clone() if rank < len(chunks) else tensor[:0].clone()
        return DTensor.from_local(mine, mesh, [Shard(0)], run_check=False, shape=tensor.shape, stride=tensor.stride())

    whole = make(size, seed)
    return {name: cut(tensor) for name, tensor in tensors(whole) if isinstance(tensor, torch.Tensor)}


def _save(rank: int, ranks: int, folder: Path, size: Size) -> None:
    import torch.distributed.checkpoint as dcp

    dcp.save(sharded(size), checkpoint_id=folder / "dcp")


def _load(rank: int, ranks: int, folder: Path, size: Size, turns: int) -> None:
    """Load into tensors that hold something else, and write down the times and whether all bytes are there."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp

    wanted, state = sharded(size), sharded(size, seed=8)
    mine = [tensor.to_local() for tensor in state.values()]
    told: dict[str, Any] = {FLOOR: [], DCP: []}
    with Warm(sum(tensor.nbytes for tensor in mine)) as warm:
        calls: dict[str, Callable[[], object]] = {
            FLOOR: Copy(mine, warm.address, 1, backwards=True),
            DCP: lambda: dcp.load(state, checkpoint_id=folder / "dcp"),
        }
        for turn in range(-1, turns):
            for name, call in calls.items():
                dist.barrier()
                took = took_s(call)
                if turn >= 0:
                    told[name].append(took)
    told["equal"] = all(torch.equal(wanted[name].to_local(), tensor.to_local()) for name, tensor in state.items())
    (folder / f"told-{rank}.json").write_text(json.dumps(told))

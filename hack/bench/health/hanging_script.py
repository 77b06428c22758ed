"""A training script: a small network averaged over gloo, with evaluations, saves and recompilations in between.

Arguments: a folder, how many steps, and who hangs then and where: "2 fetch", or "-1 -" for nobody. Rank 0 leaves the
times at which its steps and its phases ended.
"""

import sys
import time
from array import array
from pathlib import Path

import torch
import torch.distributed as dist

from turnout.launcher.elastic.steps import Steps

EVALUATES, SAVES, RECOMPILATIONS = 500, 1_000, 7  # every so many steps; in all
WIDTH, BATCH = 32, 8


def fetch() -> None:
    time.sleep(3_600)


def compute() -> None:
    while True:
        torch.ones(64) @ torch.ones(64)


def write() -> None:
    (Path(sys.argv[1]) / "queue").open("w")  # a fifo that nobody reads


PLACES = {"fetch": fetch, "compute": compute, "write": write}


def main(folder: Path, count: int, hangs: int, where: str) -> None:
    """Train `count` steps, then let rank `hangs` hang in the place `where`; -1 for no hang.

    Rank 0 writes when each step ended, or minus when each phase did, to FOLDER/record, as doubles. where: key of
    PLACES.
    """
    dist.init_process_group("gloo")
    rank, steps = dist.get_rank(), Steps()
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
    fast = torch.compile(model, backend="eager", dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    record = array("d")  # when a step ended, or minus when a phase did
    for step in steps.count(1):
        if step > count:
            if rank == hangs:
                PLACES[where]()
            if hangs < 0:
                break
        batch = BATCH + step * RECOMPILATIONS // (count + 2)
        loss = fast(torch.randn(batch, WIDTH)).square().mean()
        loss.backward()
        flat = torch.cat([each.grad.flatten() for each in model.parameters()])
        dist.all_reduce(flat)
        optimizer.step()
        optimizer.zero_grad()
        steps.done(step)
        record.append(time.monotonic())
        if step % EVALUATES == 0:
            with steps.phase("evaluation"), torch.no_grad():
                for _ in range(200):
                    model(torch.randn(64, WIDTH))
            record.append(-time.monotonic())
        if step % SAVES == 0:
            with steps.phase("saving"):
                torch.save(model.state_dict(), folder / f"saved-{rank}")
            record.append(-time.monotonic())
    if rank == 0:
        (folder / "record").write_bytes(record.tobytes())


main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])

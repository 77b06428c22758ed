"""A training script that any number of processes can run, more or fewer after each restart, to the same end.

    torchrun --nproc-per-node 2 train_elastic.py --checkpoint /data/run1.pt

A launcher restarts it in a world of another size; nothing below asks which launcher that is. The model is tiny and
runs on CPU in seconds: what to copy is how it begins, how it shares a batch, and how it saves.
"""

from __future__ import annotations

import argparse
import io
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from turnout.launcher.elastic.batch import ElasticBatch
from turnout.launcher.elastic.gradients import synced
from turnout.launcher.elastic.lr_scaling import Rule, following, world_of
from turnout.launcher.elastic.sampler import ElasticSampler


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tiny model, elastically.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="a file on storage that every worker sees")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--global-batch", type=int, default=48, help="samples of one step, in a world of any size")
    parser.add_argument("--micro-batch", type=int, default=16, help="the most samples of one pass")
    parser.add_argument("--rate", type=float, default=0.05)
    parser.add_argument("--follow", action="store_true", help="let batch and rate follow the number of processes")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="save within an epoch, too")
    parser.add_argument("--stop-at", type=int, default=0, metavar="STEP", help="die after this step, as in a fault")
    return parser.parse_args()


def samples(count: int = 1_000) -> TensorDataset:
    """Points, and on which side of a curve they lie: the same on every rank."""
    dice = torch.Generator().manual_seed(7)
    points = torch.rand(count, 2, generator=dice, dtype=torch.float64) * 2 - 1
    return TensorDataset(points, (points[:, :1] > points[:, 1:] ** 2).double())


def load(path: Path, rank: int) -> dict | None:
    """Rank 0 reads the checkpoint, and every rank gets its bytes: they all begin alike, also on slow storage."""
    read = path.read_bytes() if rank == 0 and path.exists() else b""
    size = torch.tensor(len(read))
    dist.broadcast(size, src=0)
    if not size:
        return None
    content = torch.empty(int(size), dtype=torch.uint8)
    if rank == 0:
        content = torch.frombuffer(bytearray(read), dtype=torch.uint8)
    dist.broadcast(content, src=0)
    return torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)


def save(path: Path, state: dict) -> None:
    """Write beside it, then rename: whoever dies on the way leaves the checkpoint before this one whole."""
    beside = path.with_suffix(".tmp")
    with beside.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def main() -> None:
    args = options()
    world, rank = world_of(os.environ), int(os.environ.get("RANK", "0"))
    dist.init_process_group("gloo")

    global_batch, rate = args.global_batch, args.rate
    if args.follow:
        follows = following(world, batch=args.micro_batch, rate=args.rate, rule=Rule.LINEAR)
        global_batch, rate = follows.global_batch, follows.rate

    torch.manual_seed(7)
    data = samples()
    model = DistributedDataParallel(nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1)).double())
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    sampler = ElasticSampler(len(data), seed=7)
    step = 0

    if state := load(args.checkpoint, rank):
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        sampler.load_state_dict(state["sampler"])
        step = state["step"]
        for group in optimizer.param_groups:
            group["lr"] = rate

    def keep() -> None:
        if rank == 0:
            parts = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            save(args.checkpoint, parts | {"sampler": sampler.state_dict(), "epoch": sampler.epoch, "step": step})

    if rank == 0:
        print(
            f"begins at epoch {sampler.epoch}, sample {sampler.cursor}, step {step}: {world=} {global_batch=} {rate=}"
        )

    # The loop: one pass after another, of which the last of each global batch steps the optimizer.
    plan = sampler.plan(ElasticBatch(global_batch, args.micro_batch), world=world, rank=rank)
    loader = DataLoader(data, batch_sampler=plan)
    while sampler.epoch < args.epochs:
        for part, (points, sides) in plan.over(loader):
            with synced(model, part.sync):
                loss = nn.functional.binary_cross_entropy_with_logits(model(points), sides)
                (loss * part.weight).backward()
            if not part.sync:
                continue
            optimizer.step()
            optimizer.zero_grad()
            sampler.done(part.global_samples)
            step += 1
            if args.save_every and step % args.save_every == 0:
                keep()
            if step == args.stop_at:
                os._exit(1)
        sampler.next_epoch()
        keep()

    if rank == 0:
        with torch.no_grad():
            points, sides = data.tensors
            right = ((model.module(points) > 0).double() == sides).double().mean()
        print(f"ends at epoch {sampler.epoch}, step {step}: {right:.1%} right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Training scripts that tests and stages of the GPU check start under turnout-run or torchrun.

`python scripts.py NAME DEVICE FILE [MORE]`. Each writes JSON lines to FILE: what happened, its time by the monotonic
clock, its pid and its rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


class EventLog:
    """Appends one line per event; lines of several processes do not mix."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, event: str, **facts: object) -> None:
        """Write one event at once, with time, pid and rank. facts: further fields."""
        line = {"event": event, "at_s": time.monotonic(), "pid": os.getpid(), "rank": _rank(), **facts}
        os.write(self._file, json.dumps(line).encode() + b"\n")


def _rank() -> int:
    return int(os.environ.get("RANK", "0"))


def _life() -> int:
    """Return how often this process was restarted."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def adds(device: str, log: EventLog) -> None:
    """Add numbers on the device, in a process that was forked from a parent that has imported torch; record the sum."""
    total = torch.arange(1_000, device=device).sum().item()
    log.note("added", total=total, forked="turnout.launcher.workers.forkserver.child_main" in sys.modules)


def reduces(device: str, log: EventLog, backend: str = "gloo") -> None:
    """Add ones over all ranks on the device, and record the sum. backend: of torch.distributed."""
    dist.init_process_group(backend)
    ones = torch.ones(4, device=device)
    dist.all_reduce(ones)
    log.note("reduced", total=ones.sum().item(), world=dist.get_world_size())
    dist.destroy_process_group()


def trains(device: str, log: EventLog, steps: str = "400") -> None:
    """Train on the device from the newest save up to step `steps`, and record each step. steps: a number, as text."""
    from turnout import Checkpointer, Steps

    torch.manual_seed(1)
    model = torch.nn.Linear(256, 256, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoints, progress = Checkpointer(os.environ["GPU_CHECK_FOLDER"]), Steps()
    loaded = checkpoints.load(into={"model": model})
    start = loaded.step if loaded else 0
    log.note("started", step=start, life=_life())
    for step in progress.count(start):
        if step > int(steps):
            break
        model(torch.rand(16, 256, device=device)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoints.save(step, {"model": model}, disk=False, overlap=optimizer)
        progress.done(step)
        log.note("step", step=step, life=_life())
        time.sleep(0.02)


def spins(device: str, log: EventLog) -> None:
    """Start a long kernel and kill this process, in its first life; in the second life, use the device and end."""
    if _life() == 0:
        _long_kernel(device, 60)
        log.note("spinning", life=0)
        os.kill(os.getpid(), signal.SIGKILL)
    total = torch.ones(8, device=device).sum().item()
    log.note("back", total=total, life=_life())


def hangs(device: str, log: EventLog) -> None:
    """Step ten times; then rank 1 waits for a kernel that does not end, in its first life."""
    from turnout import Steps

    dist.init_process_group("gloo")
    steps = Steps()
    for step in range(1, 21):
        if step == 11 and _rank() == 1 and _life() == 0:
            log.note("hangs", step=step)
            _long_kernel(device, 600)
            torch.ones(1, device=device).item()
        dist.all_reduce(torch.ones(4))
        steps.done(step)
        log.note("step", step=step, life=_life())
        time.sleep(0.05)
    dist.destroy_process_group()


def _long_kernel(device: str, seconds: float) -> None:
    """Keep the device busy for about so many seconds, without waiting.

    seconds: whole ones, a fraction is dropped. On a CPU, which has no kernels in the background, do nothing, but sleep
    if more than 100 s are asked for: that stands for a kernel that does not end.
    """
    if device == "cpu":
        if seconds > 100:
            time.sleep(seconds)
        return
    for _ in range(int(seconds)):
        torch.cuda._sleep(1_500_000_000)  # cycles: about a second each


def restores(device: str, log: EventLog, size: str) -> None:
    """Save a large state in the first process, which kills itself; load it from memory in the second process.

    device: of the training. size: key of SIZES.
    """
    from hack.gpu.training import SIZES, Training
    from turnout import Checkpointer
    from turnout.launcher.accelerator import synchronize

    training = Training(SIZES[size], device)
    checkpoints = Checkpointer(os.environ["GPU_CHECK_FOLDER"], generations=2)
    if _life() == 0:
        training.step()
        checkpoints.save(1, training.state(), disk=False)
        checkpoints.wait()
        log.note("saved")
        os.kill(os.getpid(), signal.SIGKILL)
    synchronize(training.device)
    began_s = time.monotonic()
    loaded = checkpoints.load()
    read_s = time.monotonic() - began_s
    assert loaded is not None, "memory holds no step"
    assert isinstance(loaded.state, dict)
    training.model.load_state_dict(loaded.state["model"])
    training.optimizer.load_state_dict(loaded.state["optimizer"])
    synchronize(training.device)
    restore_s = time.monotonic() - began_s
    facts = {"source": checkpoints.stats().source, "state_bytes": training.state_bytes()}
    log.note("restored", step=loaded.step, read_s=read_s, restore_s=restore_s, **facts)


SCRIPTS: dict[str, Callable[..., None]] = {
    "adds": adds,
    "reduces": reduces,
    "trains": trains,
    "spins": spins,
    "hangs": hangs,
    "restores": restores,
}


if __name__ == "__main__":
    name, where, file, *more = sys.argv[1:]
    SCRIPTS[name](where, EventLog(file), *more)

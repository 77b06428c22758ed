"""Measures what saves cost training, for one way to save: ours blocking, ours overlapped, torch.save, DCP, DCP async.

Stand-still is the time of some steps with a save at their beginning, less the time of as many steps without one; the
device is idle at both ends of each measurement.
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any, Protocol

from hack.bench.checkpoint.baselines import Dcp, DcpAsync, TorchSave
from hack.gpu.figures import StageArguments, arguments
from hack.gpu.training import SIZES, Training
from turnout.launcher.accelerator import synchronize
from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer

_PERSIST_S = 15.0  # the longest time for which the steps beside a persist are counted


class Saver(Protocol):
    """One way to save. `wait` returns when the newest save could be loaded."""

    def prepare(self, state: dict[str, Any]) -> None: ...
    def save(self, step: int, state: dict[str, Any]) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...


class OurSaver:
    """A Checkpointer with two generations. optimizer: whose tensors are copied in the background; None for none."""

    def __init__(self, folder: Path, memory: Path, optimizer: Any) -> None:
        self._environ = {**os.environ, "TURNOUT_MEMORY_DIR": str(memory)}
        self.checkpoints = Checkpointer(folder, generations=2, environ=self._environ)
        self._optimizer = optimizer

    def prepare(self, state: dict[str, Any]) -> None:
        """Allocate, map and register the memory."""
        self.checkpoints.prepare(state)
        self.checkpoints.wait()

    def save(self, step: int, state: dict[str, Any], *, disk: bool = False) -> None:
        """Save into memory, overlapped if there is an optimizer."""
        self.checkpoints.save(step, state, disk=disk, overlap=() if self._optimizer is None else self._optimizer)

    def wait(self) -> None:
        """Wait until the newest save is hashed."""
        self.checkpoints.wait()

    def close(self) -> None:
        """Stop saving."""
        self.checkpoints.close()


class SaverMeasurement:
    """A training with one saver, whose saves are measured."""

    def __init__(self, args: StageArguments, saver: Saver, training: Training) -> None:
        self.args, self.saver, self.training, self.number = args, saver, training, 0
        self.steps, self.rounds = (10, 3) if args.device == "cuda" else (3, 1)

    def steps_s(self, steps: int) -> float:
        """Do `steps` steps, and return the seconds until the device was idle."""
        began_s = time.perf_counter()
        for _ in range(steps):
            self.training.step()
        synchronize(self.training.device)
        return time.perf_counter() - began_s

    def save(self) -> float:
        """Start the next save, and return the seconds that the call took."""
        self.number += 1
        began_s = time.perf_counter()
        self.saver.save(self.number, self.training.state())
        return time.perf_counter() - began_s

    def run(self) -> None:
        """Report step time, call time, time that training stands still, time until the save is restorable, and the
        step rate meanwhile.
        """
        args, state_bytes = self.args, self.training.state_bytes()
        args.report("state", state_bytes / 1e9, "GB")
        self.steps_s(3)
        self.saver.prepare(self.training.state())
        self.save()
        self.steps_s(self.steps)
        self.saver.wait()
        step_s = statistics.median(self.steps_s(self.steps) for _ in range(self.rounds)) / self.steps
        args.report("step_s", step_s, "s")
        calls, stalls, rates, restorables = [], [], [], []
        for _ in range(self.rounds):
            began_s = time.perf_counter()
            calls.append(self.save())
            first_s = self.steps_s(2)
            rest_s = self.steps_s(self.steps - 2)
            stalls.append(time.perf_counter() - began_s - self.steps * step_s)
            rates.append(2 * step_s / first_s)
            self.saver.wait()
            args.report("round", f"call {calls[-1]:.4f} s, two steps {first_s:.4f} s, the others {rest_s:.4f} s")
        for _ in range(self.rounds):
            began_s = time.perf_counter()
            self.save()
            self.training.step()
            self.saver.wait()
            restorables.append(time.perf_counter() - began_s)
        args.report("call_s", statistics.median(calls), "s")
        args.report("stall_s", statistics.median(stalls), "s")
        args.report("rate_beside_copy", statistics.median(rates))
        args.report("restorable_s", statistics.median(restorables), "s")
        pinned = args.figures.get(("bandwidth", "pinned_to_host"))
        if isinstance(pinned, int | float):
            args.report("stall_over_floor", statistics.median(stalls) / (state_bytes / pinned / 1e9))

    def persist(self, saver: OurSaver, memory: Path) -> None:
        """Report the step rate while a save goes to storage, the seconds of that, and the host memory of two
        generations.

        The rate is not reported if the save is in storage before the first steps. The seconds end at about _PERSIST_S.
        memory: folder of arenas.
        """
        step_s = statistics.median(self.steps_s(self.steps) for _ in range(self.rounds)) / self.steps
        self.number += 1
        saver.save(self.number, self.training.state(), disk=True)
        self.steps_s(2)
        began_s, steps = time.perf_counter(), 0
        while saver.checkpoints.stats().persisted < self.number and time.perf_counter() - began_s < _PERSIST_S:
            self.steps_s(self.steps)
            steps += self.steps
        took_s = time.perf_counter() - began_s
        if steps:
            self.args.report("rate_during_persist", steps * step_s / took_s)
        self.args.report("persist_s", took_s, "s")
        size_bytes = sum(path.stat().st_blocks * 512 for path in memory.glob("*.arena"))
        self.args.report("host_memory_over_state", size_bytes / self.training.state_bytes())


def _saver(stage: str, folder: Path, memory: Path, training: Training) -> Saver:
    """Return the saver of a stage. Raises ValueError for an unknown stage.

    folder: storage of our savers. memory: a folder in /dev/shm. Our savers keep their arenas there, and the others save
    into it, so that no disk is measured. training: whose optimizer our overlapped saves follow.
    """
    match stage:
        case "ours-blocking":
            return OurSaver(folder, memory, None)
        case "ours-overlapped":
            return OurSaver(folder, memory, training.optimizer)
        case "torch-save":
            return TorchSave(memory / "torch")
        case "dcp-save":
            return Dcp(memory / "dcp")
        case "dcp-async":
            return DcpAsync(memory / "dcp", reused=True)
    raise ValueError(f"no stage {stage}")


def main() -> int:
    """Measure the way of saving that the stage on the command line names; of our own, also the persist. Return 0.

    Raises ValueError for an unknown stage.
    """
    logging.basicConfig(level=logging.INFO)
    args = arguments()
    training = Training(SIZES[args.size], args.device)
    saver = _saver(args.stage, args.folder, args.memory, training)
    measurement = SaverMeasurement(args, saver, training)
    measurement.run()
    if isinstance(saver, OurSaver):
        measurement.persist(saver, args.memory)
    saver.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

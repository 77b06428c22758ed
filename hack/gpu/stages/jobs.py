"""Runs small jobs on the device: one worker, two workers on one card, and a killed worker under ours and torchrun."""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from pathlib import Path

from hack.gpu.figures import StageArguments, arguments
from hack.gpu.runs import TURNOUT_RUN, lines, run, start_job

_TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
_KILLS = 3
_LOOK_S = 0.005
_LIMIT_S = 35.0  # for a job of the stage to start, and to come back


def run_one(args: StageArguments, folder: Path, memory: Path) -> int:
    """Run one worker, which uses the device; report the time to its first result. Return its exit code.

    folder, memory: for files, and for arenas.
    """
    began_s = time.monotonic()
    code, events, log = run(folder, memory, "adds", args.device, "--nproc-per-node=1", limit_s=_LIMIT_S)
    print(log)
    if code == 0:
        args.report("to_first_result_s", events[-1]["at_s"] - began_s, "s")
    return code


def run_two(args: StageArguments, folder: Path, memory: Path) -> int:
    """Run two workers on one device with gloo, then with NCCL, which may refuse two ranks on one device. Report both.

    Returns the exit code of the job with gloo. folder, memory: for files, and for arenas.
    """
    code, events, log = run(folder, memory, "reduces", args.device, "--nproc-per-node=2", limit_s=_LIMIT_S)
    print(log)
    args.report("gloo", "sums over two ranks" if [each["total"] for each in events] == [8, 8] else f"exit code {code}")
    if args.device == "cuda":
        second = folder / "nccl"
        second.mkdir()
        nccl, _, log = run(second, memory, "reduces", "cuda", "--nproc-per-node=2", more=("nccl",), limit_s=_LIMIT_S)
        print(log)
        refusal = next((line.strip() for line in log.splitlines() if "Duplicate GPU" in line), f"exit code {nccl}")
        args.report("nccl_two_ranks_on_one_device", "possible" if nccl == 0 else f"impossible: {refusal[:150]}")
    return code


def restart(args: StageArguments, folder: Path, memory: Path) -> int:
    """Kill the worker, on a GPU _KILLS times; report the median seconds until its successor's first step. Return 0.

    The stage's name says whether our launcher or torchrun restarts it. A successor that began at step 0 is reported.
    Raises SystemExit if a worker does not step within _LIMIT_S. folder, memory: for files, and for arenas.
    """
    ours = args.stage == "restart-ours"
    program = TURNOUT_RUN if ours else _TORCHRUN
    options = ("--nproc-per-node=1", "--max-restarts=10", *(() if ours else ("--monitor-interval=0.1",)))
    took: list[float] = []
    dead, kills = set[int](), _KILLS if args.device == "cuda" else 1
    with start_job(folder, memory, "trains", args.device, *options, more=("100000",), program=program) as (_, file):
        for _ in range(kills):
            victim = _wait_for_steps(file, dead)
            dead.add(victim)
            killed_s = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            successor = _wait_for_steps(file, dead, steps=1)
            of_successor = [each for each in lines(file) if each["pid"] == successor]
            started = next(each for each in of_successor if each["event"] == "started")
            first = next(each for each in of_successor if each["event"] == "step")
            took.append(first["at_s"] - killed_s)
            print(f"next step after {took[-1]:.2f} s, from step {started['step']}", flush=True)
            if not started["step"]:
                args.report("restored", "from nothing: the state was lost")
    args.report("to_next_step_s", statistics.median(took), "s")
    return 0


def restore(args: StageArguments, folder: Path, memory: Path) -> int:
    """Restore a large state from memory into a new process; report the seconds, and their ratio to a bare copy.

    Returns 0, and 1 or the job's exit code if the state did not come from memory. folder, memory: for files, and for
    arenas.
    """
    options = ("--nproc-per-node=1", "--max-restarts=1")
    code, events, log = run(folder, memory, "restores", args.device, *options, more=(args.size,), limit_s=_LIMIT_S)
    print(log)
    restored = next((each for each in events if each["event"] == "restored"), None)
    if code or restored is None or restored["source"] != "memory":
        return code or 1
    args.report("read_and_verified_s", restored["read_s"], "s")
    args.report("restore_s", restored["restore_s"], "s")
    pinned = args.figures.get(("bandwidth", "pinned_to_device"))
    if isinstance(pinned, int | float):
        args.report("restore_over_floor", restored["restore_s"] / (restored["state_bytes"] / pinned / 1e9))
    return 0


def _wait_for_steps(file: Path, dead: set[int], steps: int = 20) -> int:
    """Wait until a process that is not in `dead` has done `steps` steps; return its pid. Raises SystemExit after
    _LIMIT_S.

    file: of the job's events.
    """
    until_s = time.monotonic() + _LIMIT_S
    while time.monotonic() < until_s:
        pids = [each["pid"] for each in lines(file) if each["event"] == "step" and each["pid"] not in dead]
        if len(pids) >= steps:
            return int(pids[-1])
        time.sleep(_LOOK_S)
    raise SystemExit(f"no process took {steps} steps within {_LIMIT_S:g} s")


def main() -> int:
    """Run the job that the stage is named after. Return the result of its function, 0 for success."""
    args = arguments()
    acts = {"run-one": run_one, "run-two": run_two, "restore": restore}
    acts |= {"restart-ours": restart, "restart-torchrun": restart}
    return acts[args.stage](args, args.folder, args.memory)


if __name__ == "__main__":
    sys.exit(main())

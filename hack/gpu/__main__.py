"""Runs the stages of the GPU check one after another: `python -m hack.gpu`, called by hack/gpu/check.sh.

Each stage is a process with a time limit. A stage that hangs costs its own limit, and no figure of the others.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hack.gpu.figures import Results, StageEnd, summary

ROOT = Path(__file__).parents[2]
BUDGET_S = 290.0  # for a whole run; the machine is lent by the minute
_MARK = "GPU_CHECK_STAGE_OF"  # in the environment of all that a stage starts: the pid of this process
_TAIL = 300  # characters of a failed stage's output that its line repeats


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage."""

    name: str
    module: str  # run as `python -m MODULE`
    limit_s: float  # > 0; after this the stage is killed, with everything that it started


STAGES = (
    Stage("card", "hack.gpu.stages.card", 30),
    Stage("bandwidth", "hack.gpu.stages.bandwidth", 30),
    Stage("ours-blocking", "hack.gpu.stages.checkpoint", 45),
    Stage("ours-overlapped", "hack.gpu.stages.checkpoint", 45),
    Stage("tests", "hack.gpu.stages.tests", 110),
    Stage("run-one", "hack.gpu.stages.jobs", 40),
    Stage("run-two", "hack.gpu.stages.jobs", 40),
    Stage("restart-ours", "hack.gpu.stages.jobs", 50),
    Stage("restart-torchrun", "hack.gpu.stages.jobs", 60),
    Stage("restore", "hack.gpu.stages.jobs", 45),
    Stage("torch-save", "hack.gpu.stages.checkpoint", 40),
    Stage("dcp-save", "hack.gpu.stages.checkpoint", 40),
    Stage("dcp-async", "hack.gpu.stages.checkpoint", 40),
)


def main(argv: Sequence[str] | None = None, stages: Sequence[Stage] = STAGES) -> int:
    """Run the chosen stages one after another, and write their results to the folder --out.

    Returns 0; 1 if a stage did not end well, 2 for an unknown stage. argv: None for that of this process.
    """
    args = _parser().parse_args(argv)
    names = [stage.name for stage in stages]
    chosen = args.only.split(",") if args.only else names
    if unknown := sorted(set(chosen) - set(names)):
        print(f"no stage {', '.join(unknown)}; there are {', '.join(names)}", file=sys.stderr)
        return 2
    out = Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    if not args.only:
        for name in ("results.jsonl", "summary.md", "stages.log"):
            (out / name).unlink(missing_ok=True)
    results, ended_s, well = Results(out / "results.jsonl"), time.monotonic() + BUDGET_S, True
    for stage in stages:
        if stage.name in chosen:
            end = _run(stage, args, out, min(stage.limit_s, ended_s - time.monotonic()))
            well &= end.status == "ok"
            results.add(end)
            print(f"{stage.name}: {end.status} after {end.took_s:.1f} s {end.detail}".rstrip(), flush=True)
            (out / "summary.md").write_text(summary(*results.read(), args.device))
    print((out / "summary.md").read_text())
    return 0 if well else 1


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="hack/gpu/check.sh", description=__doc__)
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="the device that is measured (%(default)s)"
    )
    parser.add_argument("--size", choices=("default", "large", "tiny"), default="default", help="of the model")
    parser.add_argument("--only", default="", metavar="STAGE,...", help="run these stages, and keep earlier results")
    parser.add_argument("--out", default=str(ROOT / "build" / "gpu"), help="folder of the results (%(default)s)")
    return parser


def _run(stage: Stage, args: argparse.Namespace, out: Path, limit_s: float) -> StageEnd:
    """Run one stage in fresh folders on disk and in /dev/shm, which are removed afterwards. Return how it ended.

    args: of the command line. out: folder of results and log. limit_s: time left for it, seconds; below 1 it is not
    run.
    """
    if limit_s < 1:
        return StageEnd(stage.name, "not run", 0.0, f"the {BUDGET_S:g} s of the whole run were over")
    folder, memory = tempfile.mkdtemp(prefix="gpu-check-"), tempfile.mkdtemp(prefix="gpu-check-", dir="/dev/shm")
    try:
        return _run_in(stage, args, out, limit_s, ["--folder", folder, "--memory", memory])
    finally:  # everything that the stage started has ended
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(memory, ignore_errors=True)


def _run_in(stage: Stage, args: argparse.Namespace, out: Path, limit_s: float, folders: Sequence[str]) -> StageEnd:
    """Run one stage as a process with its own session, and kill the session afterwards. Return how it ended.

    folders: arguments that name the stage's folders. limit_s: seconds; after them the stage has timed out.
    """
    command = [sys.executable, "-m", stage.module, "--stage", stage.name]
    command += ["--device", args.device, "--size", args.size, "--results", str(out / "results.jsonl"), *folders]
    log, began_s = out / "stages.log", time.monotonic()
    with log.open("ab") as file:
        file.write(f"\n== {stage.name}\n".encode())
        file.flush()
        start = file.tell()
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, _MARK: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _kill_session(process.pid)
            process.wait()
    took_s = time.monotonic() - began_s
    if code == 0:
        return StageEnd(stage.name, "ok", took_s)
    with log.open("rb") as file:
        file.seek(start)
        tail = file.read().decode(errors="replace").strip()[-_TAIL:]
    return StageEnd(stage.name, "timed out" if code is None else "failed", took_s, tail)


def _kill_session(session: int) -> None:
    """Kill every process of a session. A stage's agents, daemons and workers have sessions of their own, found by
    the stage's mark in their environment.
    """
    mark = f"{_MARK}={os.getpid()}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        with suppress(OSError):
            marked = mark in (folder / "environ").read_bytes().split(b"\0")
            if pid != os.getpid() and (marked or os.getsid(pid) == session):
                os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())

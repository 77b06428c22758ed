"""Measure all scenes: `python -m hack.bench.checkpoint.scenes.runner PLAN MEMORY DISK`.

PLAN is a JSON text, MEMORY and DISK are folders. Torch is imported once. Each scene runs in a fork of this process, so
that none measures the remains of another, and writes its result to DISK/SCENE.json.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from hack.bench.checkpoint.plan import BenchmarkFolders, CheckpointPlan, SceneResult
from hack.bench.checkpoint.scenes import background_copy, overlap, reshard, sockets, stalls
from hack.bench.checkpoint.state import ModelSize
from turnout.launcher.linux import die_with

SCENES: Mapping[str, Callable[[CheckpointPlan, BenchmarkFolders], SceneResult]] = {
    "first": stalls.time_first_saves,
    "steady": stalls.time_steady_saves,
    "overlapped": background_copy.time_background_copy,
    "persisted": overlap.time_persisting,
    "worlds": reshard.time_loads,
    "sockets": sockets.measure_sending,
}
LIMIT_S = 900  # of a scene: whatever happens, it ends then
MEMORY_DIR = "TURNOUT_MEMORY_DIR"
THREADS = 2


def run_in_child(plan: CheckpointPlan, places: BenchmarkFolders) -> dict[str, SceneResult]:
    """Run all scenes in a child process. Return their results. Raises RuntimeError if a scene fails."""
    words = [json.dumps(asdict(plan)), str(places.memory), str(places.disk)]
    env = {**os.environ, MEMORY_DIR: str(places.memory), "OMP_NUM_THREADS": str(THREADS), "PYTHONPATH": os.getcwd()}
    ended = subprocess.run([sys.executable, "-m", "hack.bench.checkpoint.scenes.runner", *words], env=env, check=False)
    if ended.returncode:
        raise RuntimeError("a scene failed: its output is above")
    return {name: SceneResult(**json.loads(_result(places, name).read_text())) for name in SCENES}


def main(argv: Sequence[str]) -> int:
    """Run all scenes one after another, and write their results to the folder DISK.

    argv: PLAN as JSON, then the folders MEMORY and DISK. Returns 0; 1 once a scene fails, without the later scenes.
    """
    die_with(os.getppid(), signal.SIGKILL)
    signal.alarm(LIMIT_S * len(SCENES))
    words = json.loads(argv[0])
    words |= {name: ModelSize(**words[name]) for name in ("size", "small", "wide")}
    plan = CheckpointPlan(**words)
    places = BenchmarkFolders(Path(argv[1]), Path(argv[2]))
    warnings.simplefilter("ignore")  # DCP says at each call that there is no process group
    import torch.distributed.checkpoint
    import torch.distributed.tensor  # noqa: F401

    gc.freeze()  # what was imported is no garbage: looking for some between two saves is quick then
    for name in SCENES:
        begun_s = time.monotonic()
        process = multiprocessing.get_context("fork").Process(target=_run_scene, args=(name, plan, places))
        process.start()
        process.join()
        print(f"{name}: {time.monotonic() - begun_s:.0f} s", file=sys.stderr)
        if process.exitcode != 0:
            print(f"{name}: ended with {process.exitcode}", file=sys.stderr)
            return 1
    return 0


def _run_scene(name: str, plan: CheckpointPlan, places: BenchmarkFolders) -> None:
    """Run a scene in this process, which is killed after LIMIT_S, and write its result to a file."""
    die_with(os.getppid(), signal.SIGKILL)
    signal.alarm(LIMIT_S)
    _result(places, name).write_text(json.dumps(asdict(SCENES[name](plan, places))))


def _result(places: BenchmarkFolders, name: str) -> Path:
    return places.disk / f"{name}.json"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Two ranks of real trainers under turnout-run: one is killed, and all go on from memory, as if nothing had been."""

import json
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
TRAINER, LOOPS = (
    Path(__file__).parent / "scripts" / f"trains_{name}.py" for name in ("under_an_agent", "loops_under_an_agent")
)
pytestmark = [pytest.mark.slow, pytest.mark.long]


def turnout_run(folder, script, *arguments):
    """Run a script under `turnout-run`; give what each rank told at its end, by rank."""
    folder.mkdir(exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as memory:
        done = subprocess.run(
            [
                "setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "turnout.launcher", "--standalone",
                "--nproc-per-node", "2", "--max-restarts", "2", str(script), str(folder),
                *map(str, arguments),
            ],
            cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, timeout=200, check=False,
            env=environment | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TURNOUT_MEMORY_DIR": memory},
        )  # fmt: skip
    assert done.returncode == 0, done.stderr[-5_000:]
    lines = map(json.loads, (folder / "log").read_text().splitlines())
    return {line.pop("rank"): line for line in lines}


@pytest.mark.contract("DL-63")
def test_a_killed_rank(tmp_path):  # DL-48, DL-63
    undisturbed = turnout_run(tmp_path / "whole", TRAINER, 0)
    killed = turnout_run(tmp_path / "killed", TRAINER, 5)
    assert [undisturbed[rank].pop("began") for rank in (0, 1)] == [0, 0]
    assert [killed[rank].pop("began") for rank in (0, 1)] == [5, 5]
    assert killed == undisturbed
    steps = [each.name for each in (tmp_path / "killed" / "checkpoints").iterdir()]
    assert sorted(steps) == ["step-0000000005", "step-0000000008"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Give a function that runs ten undisturbed steps of a kind; each rank's last report, by rank."""
    return cache(lambda kind: turnout_run(tmp_path_factory.mktemp(kind), LOOPS, kind, 10, 0))


def on_from(step, undisturbed):
    """Give what each rank must tell when it goes on from this step: the same losses to the same end."""
    return {rank: each | {"began": step, "losses": each["losses"][step:]} for rank, each in undisturbed.items()}


@pytest.mark.parametrize("kind", ["accelerate", "lightning", "fsdp-1", "fsdp-2"])
def test_a_killed_rank_of_a_loop(undisturbed, tmp_path, kind):
    killed = turnout_run(tmp_path / "killed", LOOPS, kind, 10, 7)
    assert killed == on_from(6, undisturbed(kind))


@pytest.mark.parametrize("kind", ["accelerate", "lightning"])
def test_a_loop_that_was_ended_goes_on_from_storage(undisturbed, tmp_path, kind):
    turnout_run(tmp_path / "ended", LOOPS, kind, 6, 0)
    assert turnout_run(tmp_path / "ended", LOOPS, kind, 10, 0) == on_from(6, undisturbed(kind))

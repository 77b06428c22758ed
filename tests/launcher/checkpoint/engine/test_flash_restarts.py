"""The guide's loops over gloo under turnout-run: a process is killed, and then all memory is gone."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest
import torch

from turnout.launcher.addresses import free_port
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import committed_manifests

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[4]
SCRIPT = Path(__file__).with_name("scripts") / "flash.py"


@pytest.fixture
def turnout_run(environ, memory, tmp_path):
    """Runs the guide's loop of this kind. Gives what each rank has told, by life. killed: see the script."""

    def run(kind, last, killed=0, processes=2, workers=1):
        (tmp_path / "log").unlink(missing_ok=True)
        meeting = ("--nnodes", str(workers), "--rdzv-endpoint", f"127.0.0.1:{free_port('127.0.0.1')}")
        started = [
            subprocess.Popen(
                (
                    "setpriv", "--pdeathsig", "KILL",
                    sys.executable, "-m", "turnout.launcher", *meeting, "--name", f"w{at}",
                    "--nproc-per-node", str(processes // workers), "--max-restarts", "2",
                    str(SCRIPT), str(tmp_path), kind, str(last), str(killed),
                ),
                cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env=environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "TURNOUT_MEMORY_DIR": str(at_memory)},
            )
            for at, at_memory in enumerate(_made(memory, workers))
        ]  # fmt: skip
        try:
            ended = [(agent.communicate(timeout=150)[1], agent.returncode) for agent in started]
        finally:
            for agent in started:
                agent.kill()
                agent.wait()
        assert [code for _, code in ended] == [0] * workers, ended[0][0][-5_000:]
        records = defaultdict(dict)
        for line in map(json.loads, (tmp_path / "log").read_text().splitlines()):
            records[line["restarts"]][line["rank"], line["at"], line["step"]] = line["bits"]
        return records

    return run


def _made(memory, workers):
    """A folder of each worker's own: no host has the memory of another."""
    folders = [memory / str(at) for at in range(workers)]
    for each in folders:
        each.mkdir(exist_ok=True)
    return folders


def starts(life):
    """The step from which each rank has gone on."""
    return {rank: step for rank, at, step in life if at == "starts"}


def goes_on(life, from_life, step):
    """True if every rank got its part of this step, to the last bit."""
    assert starts(life) == {0: step, 1: step}
    assert all(life[rank, "starts", step] == from_life[rank, "saved", step] for rank in (0, 1))


def torch_files(folder):
    return sorted(each.name for each in (folder / "checkpoints").glob("*.pt"))


def steps_of(folder):
    """Those that are committed, and the files of each, in its own folder."""
    found = {}
    for each in (folder / "checkpoints").iterdir():
        for manifest in committed_manifests(open_store(str(each)), lambda word, fields: None):
            found[int(each.name)] = (manifest.step, sorted(path.name for path in each.rglob("*.safetensors")))
    return found


@pytest.mark.contract("DL-43", "DL-44", "DL-46", "DL-48", "DL-51", "DL-63")
@pytest.mark.parametrize("workers", [
    pytest.param(1, id="of one worker"),
    pytest.param(2, id="of another worker", marks=pytest.mark.long),
])  # fmt: skip
def test_a_killed_rank_of_ddp(turnout_run, tmp_path, workers):  # DL-43, DL-48, DL-51, DL-65
    """All ranks go on from the newest step in memory; it is in its file too. When memory is gone, the newest file."""
    lives = turnout_run("ddp", last=9, killed=7, workers=workers)
    assert starts(lives[0]) == {0: 0, 1: 0}
    goes_on(lives[1], lives[0], 7)
    assert torch_files(tmp_path) == ["checkpoint-4.pt", "checkpoint-7.pt", "checkpoint-8.pt"]
    state = torch.load(tmp_path / "checkpoints" / "checkpoint-7.pt", weights_only=True)
    assert (state["step"], sorted(state)) == (7, ["model", "optimizer", "step"])
    assert all(lives[1][rank, "loads", 9] == lives[1][rank, "saved", 9] for rank in (0, 1))
    second_run = turnout_run("ddp", last=8, workers=workers)
    goes_on(second_run[0], lives[1], 8)


@pytest.mark.contract("DL-52", "DL-53", "DL-54", "DL-63")
@pytest.mark.parametrize(("kind", "processes"), [
    pytest.param("fsdp", 1, id="fsdp, and one process loads what two have saved"),
    pytest.param("fsdp", 2, id="fsdp", marks=pytest.mark.long),
    pytest.param("fsdp-newer", 2, id="fsdp-newer", marks=pytest.mark.long),
])  # fmt: skip
def test_a_killed_rank_of_fsdp(turnout_run, tmp_path, kind, processes):  # DL-52 to DL-56
    """In both generations of the class: each rank its own shard, one file a rank in the folder of the step."""
    lives = turnout_run(kind, last=9, killed=7)
    assert starts(lives[0]) == {0: 0, 1: 0}
    goes_on(lives[1], lives[0], 7)
    shards = ["rank-00000.safetensors", "rank-00001.safetensors"]
    assert steps_of(tmp_path) == {step: (step, shards) for step in (4, 7, 8)}
    second_run = turnout_run(kind, last=8, processes=processes)[0]
    assert starts(second_run) == dict.fromkeys(range(processes), 8)
    if processes == 2:
        goes_on(second_run, lives[1], 8)


@pytest.mark.contract("DL-55", "DL-56")
@pytest.mark.long
def test_what_two_ranks_have_saved_one_loads(turnout_run, tmp_path):  # DL-56
    turnout_run("fsdp", last=4)
    assert starts(turnout_run("fsdp", last=4, processes=1)[0]) == {0: 4}
    assert os.listdir(tmp_path / "checkpoints") == ["4"]

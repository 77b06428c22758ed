"""Worlds that save by torch.distributed.checkpoint: what any world saves any other loads, and nothing else."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from turnout.launcher.addresses import free_port
from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader
from turnout.launcher.checkpoint.format.manifest import Manifest, read, write

ROOT = Path(__file__).resolve().parents[4]
WORLDS, TRAINS = (Path(__file__).parents[1] / "engine/scripts" / name for name in ("worlds.py", "trains.py"))
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")]


def outside(memory):
    """The environment of a process that no launcher has started."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    return variables | {"TURNOUT_MEMORY_DIR": str(memory), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


def run(folder, tasks):
    """Run the tasks; give what each rank of each world has found, in the order of tasks."""
    memory = folder / "memory"
    memory.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, WORLDS, folder],
        input=json.dumps(tasks),
        env=outside(memory),
        capture_output=True,
        text=True,
        timeout=200,
    )
    found = [[None] * task["world"] for task in tasks]
    for line in filter(lambda line: line.startswith("{"), done.stdout.splitlines()):
        document = json.loads(line)
        found[document["task"]][document["rank"]] = document
    assert all(all(ranks) for ranks in found), done.stderr[-3000:]
    return found


def found_by(ranks):
    """Give what all ranks of a world have found alike."""
    assert all("found" in each for each in ranks), [each.get("trace") for each in ranks]
    assert all(each["found"] == ranks[0]["found"] for each in ranks)
    return ranks[0]["found"]


SIZES = (1, 2, 3)


OTHER_SIZES = {
    f"save by {by}": {"do": "save", "world": by, "step": by, "name": f"ours{by}", "theirs": f"theirs{by}"}
    for by in SIZES
} | {f"load by {world}": {"do": "loads", "world": world, "names": SIZES} for world in SIZES}
TASKS = OTHER_SIZES | {
    "fsdp1": {"do": "fsdp1", "world": 2, "step": 3, "name": "fsdp1"},
    "parts": {"do": "parts_of", "world": 2, "step": 3, "name": "parts"},
    "steps": {"do": "saves", "world": 2, "sizes": [1, 1, 0, 1]},
    "fewer again": {"do": "load", "world": 2, "step": 3, "more": False},
    "more again": {"do": "load", "world": 3},
    "one or two": {"do": "disagree", "world": 2, "steps": [2, 1]},
    "one or fewer": {"do": "disagree", "world": 2, "steps": [1, 3], "more": False},
    "refused": {"do": "refused", "world": 2, "step": 1, "name": "nothing"},
    "differ": {"do": "steps_differ", "world": 2, "name": "nothing"},
}

ROWLESS = torch.__version__ >= (2, 7)  # 2.6 itself gives no state dict of FSDP1 where a rank has no row of a parameter
if ROWLESS:
    TASKS["fsdp1 at once"] = {"do": "fsdp1_at_once", "world": 2, "step": 3, "name": "at_once"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("worlds")


@pytest.fixture(scope="module")
def report(folder):
    """Give what the ranks of each world have told."""
    return dict(zip(TASKS, run(folder, list(TASKS.values())), strict=True))


@pytest.mark.parametrize("world", SIZES)
@pytest.mark.parametrize("by", SIZES)
def test_any_world_loads_what_another_saved_bit_by_bit_as_dcp_does(report, by, world):
    saved, loaded = found_by(report[f"save by {by}"]), found_by(report[f"load by {world}"])[by - 1]
    assert loaded == saved
    assert len(saved) > 20


def test_an_fsdp1_sharded_state_and_its_optimizer_come_back_by_one_reader(report):
    assert found_by(report["fsdp1"]) is True


@pytest.mark.contract("DL-55", "DL-56")
@pytest.mark.skipif(not ROWLESS, reason="2.7 and newer")
def test_of_fsdp1_a_rank_may_have_nothing_of_a_parameter(report):  # DL-56
    assert found_by(report["fsdp1 at once"]) is True


def test_each_rank_gets_the_parts_back_that_are_its_own(report):
    assert [each.get("found", each.get("trace")) for each in report["parts"]] == [[0.0] * 3, [1.0] * 3]


def test_a_state_dict_may_grow_from_save_to_save(report):
    _, _, fewer, more = found_by(report["steps"])
    assert len(more) > len(fewer)
    assert (found_by(report["fewer again"]), found_by(report["more again"])) == (fewer, more)


def test_ranks_that_find_different_steps_read_the_oldest_if_it_is_alike(report):
    one, two, _, _ = found_by(report["steps"])
    assert found_by(report["one or two"]) == one != two
    assert all("different checkpoints, of steps [1, 3]" in each["error"] for each in report["one or fewer"])


def test_shards_of_two_saves_of_one_step_are_not_read_as_one(report, folder, tmp_path, environ):
    stores = [folder / name / "step-0000000002" for name in ("ours2", "ours")]
    manifests = [read((store / "manifest.json").read_bytes()) for store in stores]
    mixed = tmp_path / "mixed" / "step-0000000002"
    mixed.mkdir(parents=True)
    shards = tuple(manifest.shards[rank] for rank, manifest in enumerate(manifests))
    for store, shard in zip(stores, shards, strict=True):
        shutil.copy(store / shard.file, mixed)
    (mixed / "manifest.json").write_bytes(write(Manifest("r", 2, 0, 2, 0.0, shards)))
    reader = FlashStorageReader(mixed.parent, environ=environ)
    with pytest.raises(CheckpointException, match="rank 1 of step 2 is of another save of this step"):
        dcp.load({"model": {"first.weight": torch.zeros(7, 5)}}, storage_reader=reader)


@pytest.mark.parametrize(
    ("what", "why"),
    [
        pytest.param("refused", "extra.deep/#1: a builtins.function is neither", id="a value, with its path"),
        pytest.param("differ", "the ranks save different steps: [0, 1]", id="steps that differ from rank to rank"),
    ],
)
def test_what_one_rank_cannot_save_all_are_told(report, what, why):
    assert all(why in each["error"] for each in report[what]), [each["error"] for each in report[what]]


def train(folder, log, last, killed=0, processes=2, workers=1):
    """Run trains.py under turnout-run. Gives the step that each rank of each life begins with, and digests."""
    folders = [log.with_name(f"memory{at}") for at in range(workers)]
    meeting = ("--nnodes", str(workers), "--rdzv-endpoint", f"127.0.0.1:{free_port('127.0.0.1')}")
    agents = []
    log.unlink(missing_ok=True)
    for at, memory in enumerate(folders):
        memory.mkdir(exist_ok=True)
        command = (
            "setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "turnout.launcher", *meeting, "--name", f"w{at}",
            "--nproc-per-node", str(processes // workers), "--max-restarts", "1",
            str(TRAINS), str(log), str(folder), str(last), str(killed),
        )  # fmt: skip
        agents.append(subprocess.Popen(command, env=outside(memory), stderr=subprocess.PIPE, text=True))
    try:
        report = [agent.communicate(timeout=150)[1] for agent in agents]
    finally:
        for agent in agents:
            agent.kill()
    assert [agent.returncode for agent in agents] == [0] * workers, report[0][-3000:]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    begins = {(each["restarts"], each["rank"]): each["step"] for each in lines if each["at"] == "starts"}
    return begins, {(each["restarts"], each["at"], each["step"]): each["bits"] for each in lines}


@pytest.mark.long
def test_a_world_of_two_workers_goes_on_from_memory_and_needs_no_storage(tmp_path):
    """Only one rank saves what both have alike: the other worker's memory has it, too."""
    begins, bits = train("/dev/null/nowhere", tmp_path / "log", last=5, killed=3, workers=2)
    assert begins == {(0, 0): 0, (0, 1): 0, (1, 0): 3, (1, 1): 3}
    assert bits[1, "starts", 3] == bits[0, "saved", 3]


@pytest.mark.long
def test_memory_of_a_dead_rank_is_in_storage_and_a_larger_world_loads_it(tmp_path):  # DL-54
    begins, bits = train(tmp_path / "checkpoints", tmp_path / "log", last=3, killed=3)
    assert begins == {(0, 0): 0, (0, 1): 0, (1, 0): 3, (1, 1): 3}
    begins, second_ends = train(tmp_path / "checkpoints", tmp_path / "log", last=3, processes=3)
    assert begins == {(0, 0): 3, (0, 1): 3, (0, 2): 3}
    assert second_ends[0, "starts", 3] == bits[0, "saved", 3] == bits[1, "starts", 3]

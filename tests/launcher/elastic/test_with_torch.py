"""The helpers under real torch and gloo, in worlds of 1, 2 and 3 processes. What runs in them is gang.py."""

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tests.launcher.elastic.names import BATCHES, WORLDS
from turnout.launcher.elastic.sampler import shuffle_positions

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
EVERY_WORLD = pytest.mark.parametrize("world", WORLDS, ids=[f"world of {world}" for world in WORLDS])


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Run the scripts once, since importing torch takes seconds; give what they saw."""
    folder = tmp_path_factory.mktemp("gang")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.launcher.elastic.gang", str(folder)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as gang:
        try:
            output, _ = gang.communicate(timeout=200)
        finally:
            if gang.poll() is None:
                os.killpg(gang.pid, 9)
    assert gang.returncode == 0, output
    return json.loads((folder / "seen.json").read_text())


@EVERY_WORLD
def test_every_rank_came_to_its_end(reports, world):
    assert reports["codes"][str(world)] == [0] * world


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize(("wrapper", "world"), [("nothing", 1), *product(["DDP", "FSDP2"], WORLDS)])
def test_gradients_equal_those_of_the_whole_batch_and_are_averaged_once(reports, wrapper, world, name):
    found = [rank[key] for rank in reports["gradients"] if (key := f"{wrapper}, world of {world}, {name}") in rank]
    assert len(found) == world
    for off, averaged in found:
        assert off < 1e-14
        assert averaged == 1


@pytest.mark.parametrize("world", [2, 3])
def test_without_its_weights_an_uneven_batch_would_give_other_gradients(reports, world):
    key = f"unweighed, world of {world}"
    off, _ = next(rank[key] for rank in reports["gradients"] if key in rank)
    assert off > 0.05


def test_workers_that_fetch_ahead_move_no_cursor(reports):
    """Rank 1 of 2, batches of 4 in passes of 1: it has been given 5 passes and has committed two batches."""
    found = reports["fetching"]
    assert found["cursors"] == [0, 4, 4, 8, 8]
    assert found["looked"][0] >= 8  # 2 workers x 4 ahead: two batches past what is committed
    assert found["state"] == {"seed": 9, "epoch": 0, "cursor": 8, "length": 40}
    order = shuffle_positions(np.arange(40), 40, 9, 0).tolist()
    assert found["mine"] == order[1:10:2]  # of each batch its second and fourth; the third batch is not committed


def test_one_loader_with_lasting_workers_serves_every_epoch(reports):
    assert reports["epochs"] == [shuffle_positions(np.arange(40), 40, 9, epoch).tolist() for epoch in (0, 1)]


@pytest.mark.contract("VE-07", "VE-19")
def test_the_example_goes_on_in_mid_epoch_in_another_world_to_the_same_end(reports):
    """Alone to the end; and under torchrun with 2 until it dies after step 30, then 3 processes."""
    found = reports["example"]
    assert found["codes"] == [[0], [1], [0, 0, 0], [0], [0, 0]]
    begins = [line.split(":")[0] for line in found["told"] if line.startswith("begins")]
    assert begins[:3] == [
        "begins at epoch 0, sample 0, step 0",
        "begins at epoch 0, sample 0, step 0",
        "begins at epoch 1, sample 336, step 28",  # what step 29 and 30 saw comes again
    ]
    state = {"epoch": 3, "step": 63, "sampler": {"seed": 7, "epoch": 3, "cursor": 0, "length": 1000}}
    assert found["ends"] == [state, state]
    assert found["off"] < 1e-12
    ends = [line for line in found["told"] if line.startswith("ends")]
    assert ends[0] == ends[1]


@pytest.mark.contract("VE-20")
def test_the_examples_batch_and_rate_follow_the_process_count_on_request(reports):
    sizes = [line.split(": ")[1] for line in reports["example"]["told"] if line.startswith("begins")]
    assert sizes == [
        "world=1 global_batch=48 rate=0.05",
        "world=2 global_batch=48 rate=0.05",
        "world=3 global_batch=48 rate=0.05",
        "world=1 global_batch=16 rate=0.05",
        "world=2 global_batch=32 rate=0.1",
    ]

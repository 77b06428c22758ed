"""Random numbers go on after a load as they would have without it, and what keeps its own state is saved as that."""

import random

import numpy as np
import pytest
import torch

from tests.launcher.checkpoint.engine.states import same
from turnout.launcher.checkpoint.engine import rng
from turnout.launcher.errors import BadCheckpoint


def drawn():
    return [
        torch.rand(3).tolist(), torch.randn(3).tolist(), np.random.rand(3).tolist(), np.random.normal(size=3).tolist(),
        random.random(), random.gauss(0, 1), random.sample(range(100), 3),
    ]  # fmt: skip


@pytest.mark.parametrize("before", [0, 1, 5], ids="after {} draws".format)
@pytest.mark.parametrize("disk", [False, True], ids=["from memory", "from storage"])
def test_what_is_drawn_after_a_load_is_what_was_drawn_after_the_save(make, tmp_path, before, disk):
    checkpoints = make(tmp_path)
    for _ in range(before):
        random.gauss(0, 1)  # which makes two, and keeps one
        np.random.normal()
        torch.rand(7)
    checkpoints.save(1, {"step": 1}, disk=disk)
    checkpoints.wait()
    after = [drawn() for _ in range(300)]  # past the end of a twister's words
    found = (make(tmp_path, TURNOUT_MEMORY_DIR=str(tmp_path)) if disk else checkpoints).load()
    assert [drawn() for _ in range(300)] == after
    assert found.state == {"step": 1}  # no key of it is taken


def test_each_rank_goes_on_with_its_own(make, tmp_path):
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    first = make(tmp_path, replicated=True, RANK="0", LOCAL_RANK="0", **world)
    second = make(tmp_path, replicated=True, RANK="1", LOCAL_RANK="1", **world)
    first.save(1, {"step": 1})
    first.wait()
    after, state = drawn(), random.getstate()
    first.load()
    assert drawn() == after
    random.setstate(state)
    expected = random.random()
    random.setstate(state)
    second.load()  # which has only rank 0's to see
    assert random.random() == expected


def test_without_rng_nothing_is_set_back(make, tmp_path):
    checkpoints = make(tmp_path, rng=False)
    checkpoints.save(1, {}, disk=False)
    after = drawn()
    checkpoints.load()
    assert drawn() != after


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("[]", id="no object"),
        pytest.param(rng.encode_state(0).replace('"rank":0', '"rank":"0"'), id="a rank that is no number"),
        pytest.param(rng.encode_state(0).replace('"words":"', '"words":"AAAA'), id="words too many"),
        pytest.param(rng.encode_state(0).replace('"torch":"', '"torch":"AAAA'), id="a state that torch does not take"),
        pytest.param(rng.encode_state(0).replace('"at":', '"at":9'), id="a place behind the last word"),
    ],
)
def test_what_are_no_random_numbers_is_refused(text):
    states = random.getstate(), torch.get_rng_state()
    with pytest.raises(BadCheckpoint, match="random numbers"):
        rng.restore(text, 0)
    random.setstate(states[0])
    torch.set_rng_state(states[1])


def parts(seed):
    torch.manual_seed(seed)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0 * seed)
    for _ in range(seed):
        model(torch.rand(2, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "step": seed}


def test_what_has_a_state_dict_is_saved_as_that_and_takes_it_up_again(make, tmp_path):
    checkpoints, saved = make(tmp_path), parts(3)
    checkpoints.save(3, saved, disk=False)
    fresh = parts(1)
    found = checkpoints.load(into=fresh)
    assert found.state["step"] == 3
    for name in ("model", "optimizer", "scheduler", "scaler"):
        expected = saved[name].state_dict()
        assert same(expected, found.state[name])
        assert same(expected, fresh[name].state_dict())

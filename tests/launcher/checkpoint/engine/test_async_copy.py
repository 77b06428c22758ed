"""Saves that are copied while training goes on are what was there when they were asked for, or they are told."""

import gc
import weakref

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from tests.kit.hypothesis_examples import scaled
from tests.launcher.checkpoint.engine.states import same


class Training:
    """A model with a buffer that forward changes, and AdamW. width: enough that a copy takes a while."""

    def __init__(self, width=64):
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Linear(width, 8))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.width = width
        self.step()

    def backward(self):
        self.model(torch.rand(4, self.width)).square().sum().backward()

    def step(self):
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def copy_of(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return type(value)((key, copy_of(each)) for key, each in value.items())
    return [copy_of(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 3_000])
def test_each_save_holds_what_was_there_when_it_was_asked_for(make, tmp_path, width):
    training, checkpoints = Training(width), make(tmp_path)
    checkpoints.prepare(training.state())
    checkpoints.wait()
    for step in range(1, 6):
        before = copy_of(training.state())
        checkpoints.save(step, training.state(), disk=False, overlap=training.optimizer)
        training.step()
        assert same((step, before), tuple(checkpoints.load()))
    assert (checkpoints.stats().saves, checkpoints.stats().dropped) == (5, 0)


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda checkpoints, training: training.optimizer.step(), id="the optimizer's step"),
        pytest.param(lambda checkpoints, training: checkpoints.wait(), id="waiting for it"),
        pytest.param(lambda checkpoints, training: checkpoints.stats(), id="asking for it"),
        pytest.param(lambda checkpoints, training: checkpoints.load(), id="loading it"),
        pytest.param(lambda checkpoints, training: checkpoints.close(), id="closing"),
        pytest.param(
            lambda checkpoints, training: checkpoints.save(2, training.state(), overlap=training.optimizer),
            id="the next save",
        ),
    ],
)
def test_what_ends_a_save_that_is_copied_behind_training(make, tmp_path, ends):
    training, checkpoints = Training(), make(tmp_path)
    before = copy_of(training.state())
    checkpoints.save(1, training.state(), overlap=training.optimizer)
    ends(checkpoints, training)
    checkpoints.close()
    assert (tmp_path / "step-0000000001" / "manifest.json").exists()
    elsewhere = make(tmp_path, TURNOUT_MEMORY_DIR=str(tmp_path))
    assert same(before, elsewhere.load().state)


def by_hand(training):
    with torch.no_grad():
        training.model[0].weight.mul_(1.01)


def by_loading(training):
    training.model.load_state_dict({name: each * 2 for name, each in training.model.state_dict().items()})


def in_the_optimizers_state(training):
    next(iter(training.optimizer.state.values()))["exp_avg"].zero_()


@pytest.mark.parametrize("write", [by_hand, by_loading, in_the_optimizers_state])
def test_a_write_before_the_step_is_found_told_and_costs_one_save_once(make, tmp_path, write):
    training, checkpoints, failures = Training(), make(tmp_path), []
    checkpoints.on_failure = lambda step, why: failures.append((step, why, checkpoints.stats().dropped))
    before = copy_of(training.state())
    checkpoints.save(1, training.state(), disk=False)
    for step in (2, 3, 4):
        now = copy_of(training.state())
        checkpoints.save(step, training.state(), disk=False, overlap=training.optimizer)
        write(training)
        training.step()
        expected = (1, before) if step == 2 else (step, now)
        assert same(expected, tuple(checkpoints.load()))
    assert [(step, dropped) for step, _, dropped in failures] == [(2, 1)]
    assert "was written to before the optimizer's step" in failures[0][1]
    assert checkpoints.stats().dropped == 1


@pytest.mark.parametrize("width", [64, pytest.param(3_000, marks=pytest.mark.slow)])
def test_with_verify_a_write_that_no_version_tells_of_is_never_loaded(make, tmp_path, width):
    training, checkpoints, failures = Training(width), make(tmp_path), []
    checkpoints.on_failure = lambda step, why: failures.append(step)
    for step in range(1, 5):
        before = copy_of(training.state())
        checkpoints.save(step, training.state(), disk=False, overlap=training.optimizer, verify=True)
        for parameter in training.model.parameters():
            parameter.data.add_(1)  # it may come before its copy, or after it
        training.step()
        found = checkpoints.load()
        assert step in failures or same((step, before), tuple(found))
        assert found is None or found.step == step or step in failures


def test_what_forward_changes_is_copied_at_once(make, tmp_path):
    training, checkpoints = Training(), make(tmp_path)
    before = copy_of(training.state())
    checkpoints.save(1, training.state(), disk=False, overlap=training.optimizer)
    for _ in range(3):
        training.backward()  # BatchNorm counts, and moves its mean
    assert not same(before["model"], training.model.state_dict())
    training.optimizer.step()
    assert same((1, before), tuple(checkpoints.load()))


def test_several_optimizers_and_one_that_is_gone(make, tmp_path):
    one, other, checkpoints = Training(), Training(), make(tmp_path)
    for step in (1, 2):
        before = copy_of([one.state(), other.state()])
        both = [one.optimizer, other.optimizer]
        checkpoints.save(step, [one.state(), other.state()], disk=False, overlap=both)
        other.step()
        one.step()
        assert same((step, before), tuple(checkpoints.load()))
    reference = weakref.ref(other.optimizer)
    del other, both
    gc.collect()
    assert reference() is None
    checkpoints.save(3, one.state(), disk=False, overlap=one.optimizer)
    one.step()
    assert checkpoints.load().step == 3


ACTS = ("step", "backward", "save", "save at once", "save only the model")


@settings(max_examples=scaled(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.sampled_from(ACTS), max_size=12))
def test_the_newest_save_is_what_was_asked_for_in_any_order_of_events(make, tmp_path_factory, acts):
    training, checkpoints = Training(), make(tmp_path_factory.mktemp("checkpoints"), frozen=["model/0.bias"])
    expected = None
    for step, act in enumerate(acts, 1):
        if act == "step":
            training.step()
        elif act == "backward":
            training.backward()
        else:
            state = training.state() if act != "save only the model" else training.model.state_dict()
            expected = step, copy_of(state)
            overlap = () if act == "save at once" else training.optimizer
            checkpoints.save(step, state, disk=False, overlap=overlap)
    found = checkpoints.load()
    assert found is None if expected is None else same(expected, tuple(found))
    checkpoints.close()

"""Tensors that are declared frozen: copied once for each generation, and never stale without that being told."""

import mmap

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from tests.launcher.checkpoint.engine.states import same
from turnout.launcher.checkpoint.format.arena_layout import offset_of

FROZEN_BYTES = 4 * (1 << 16)


def lora():
    """Most of it stays as it is, a little is trained."""
    return {
        "model": {"base": torch.rand(1 << 16), "half": torch.rand(64, 64).t(), "adapter": torch.rand(64)},
        "step": 0,
    }


def is_frozen(name, tensor):
    return "adapter" not in name


def train(state):
    state["model"]["adapter"].add_(1)
    state["step"] += 1


@pytest.fixture
def failures():
    return []


@pytest.fixture
def frozen(make, tmp_path, failures):
    def maker(declared=is_frozen, **options):
        checkpoints = make(tmp_path, frozen=declared, **options)
        checkpoints.on_failure = lambda step, why: failures.append(why)
        return checkpoints

    return maker


def saved(checkpoints, step, state):
    """Save it, and load it again. -> how many bytes were copied"""
    before = checkpoints.stats().copied_bytes
    checkpoints.save(step, state, disk=False)
    assert same((step, state), tuple(checkpoints.load()))
    return checkpoints.stats().copied_bytes - before


@pytest.mark.parametrize(
    "declared",
    [
        pytest.param(is_frozen, id="by a function of name and tensor"),
        pytest.param({"model/base", "model/half"}, id="by their names"),
        pytest.param(["model"], id="by what they lie in, though some of it changes"),
    ],
)
def test_each_generation_copies_what_is_frozen_once(frozen, failures, declared):
    checkpoints, state = frozen(declared, generations=3), lora()
    copied = []
    for step in range(1, 9):
        train(state)
        copied.append(saved(checkpoints, step, state))
    assert min(copied[:3]) >= FROZEN_BYTES
    assert max(copied[3:]) <= 64 * 4
    assert failures == []


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda model: model["base"].mul_(2), id="in place"),
        pytest.param(lambda model: model["base"][3:5].zero_(), id="a part of it, by a view"),
        pytest.param(lambda model: model["half"].add_(1), id="one that is not contiguous"),
        pytest.param(lambda model: model.update(base=model["base"] + 1), id="another tensor in its place"),
        pytest.param(lambda model: model.update(base=model["base"].double()), id="of another dtype"),
        pytest.param(lambda model: setattr(model["base"], "data", model["base"] * 2), id="other bytes by .data"),
        pytest.param(lambda model: model.update(more=torch.rand(9)), id="one more"),
        pytest.param(lambda model: model.pop("base"), id="one less"),
    ],
)
def test_a_change_that_torch_knows_of_is_copied_at_once(frozen, failures, write):
    checkpoints, state = frozen(), lora()
    for step in range(1, 5):
        saved(checkpoints, step, state)
    write(state["model"])
    for step in range(5, 9):
        train(state)
        saved(checkpoints, step, state)
    assert (failures, checkpoints.stats().dropped) == ([], 0)


def silently(tensor):
    """Change a tensor as C++ or numpy do: no version tells of it."""
    tensor.data.view(-1)[7] += 1


def test_an_unannounced_change_is_found_and_told_and_ends_all_skipping(frozen, failures):
    checkpoints, state = frozen(), lora()
    for step in range(1, 5):
        saved(checkpoints, step, state)
    silently(state["model"]["base"])
    checkpoints.save(5, state, disk=False)
    found = checkpoints.load()
    assert found is None or found.step < 5  # what may be stale is gone
    assert len(failures) == 1
    assert "model/base was declared frozen and has changed" in failures[0]
    for step in range(6, 12):
        silently(state["model"]["base"])
        assert saved(checkpoints, step, state) >= FROZEN_BYTES
    assert checkpoints.stats().dropped == 1


def test_who_is_told_may_ask_how_it_stands(frozen):
    checkpoints, state, stats = frozen(), lora(), []
    checkpoints.on_failure = lambda step, why: stats.append(checkpoints.stats().dropped)
    for step in range(1, 5):
        saved(checkpoints, step, state)
    silently(state["model"]["base"])
    checkpoints.save(5, state, disk=False)
    checkpoints.wait()
    assert stats == [1]


def test_memory_that_has_lost_a_bit_is_not_taken_for_what_is_frozen(frozen, failures, memory):
    checkpoints, state = frozen(generations=2), lora()
    for step in range(1, 4):
        saved(checkpoints, step, state)
    (arena,) = memory.glob("*.arena")
    with open(arena, "r+b") as file:
        for generation in range(2):
            with mmap.mmap(file.fileno(), 1 << 16, offset=offset_of(generation)) as view:
                view[50_000] ^= 1
    checkpoints.save(4, state, disk=False)
    found = checkpoints.load()
    assert found is None or same(state, found.state)
    saved(checkpoints, 5, state)
    saved(checkpoints, 6, state)


def test_who_lies_where_another_lay_is_not_taken_for_it(frozen, failures):
    """A tensor that is replaced leaves its place to the next but one, which is of the same version."""
    checkpoints, state = frozen(), lora()
    for step in range(1, 12):
        state["model"]["base"] = state["model"]["base"] + 1
        checkpoints.save(step, state, disk=False)
        assert same(state, checkpoints.load().state)
    assert not failures


WRITES = {
    "train": train,
    "in place": lambda state: state["model"]["base"].mul_(1.5),
    "replace": lambda state: state["model"].update(base=state["model"]["base"] + 1),
    "grow": lambda state: state["model"].update({str(len(state["model"])): torch.rand(5)}),
    "silently": lambda state: silently(state["model"]["base"]),
    "nothing": lambda state: None,
}


@settings(max_examples=scaled(12), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=st.lists(st.sampled_from(sorted(WRITES)), min_size=3, max_size=10))
def test_what_is_loaded_is_what_was_saved_or_it_was_told(make, tmp_path_factory, writes):
    events = []
    checkpoints, state = make(tmp_path_factory.mktemp("checkpoints"), frozen=is_frozen), lora()
    checkpoints.on_failure = lambda step, why: events.append(why)
    for step, write in enumerate(writes, 1):
        WRITES[write](state)
        checkpoints.save(step, state, disk=False)
        found = checkpoints.load()
        fresh = found is not None and found.step == step
        assert same(state, found.state) if fresh else events
    assert not events or "silently" in writes
    checkpoints.close()

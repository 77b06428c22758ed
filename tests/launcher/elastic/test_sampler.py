"""One order of samples an epoch, and one cursor in it, for a world of any size."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.elastic.batch import BadBatch, ElasticBatch
from turnout.launcher.elastic.sampler import BadData, ElasticSampler, OtherData, shuffle_positions

ALONE = {"world": 1, "rank": 0}


def order(length, seed=0, epoch=0):
    return shuffle_positions(np.arange(length), length, seed, epoch).tolist()


@settings(max_examples=scaled(300), deadline=None)
@given(st.integers(1, 3_000), st.integers(0, 2**70), st.integers(0, 10_000))
def test_every_epoch_is_a_permutation(length, seed, epoch):
    assert sorted(order(length, seed, epoch)) == list(range(length))


@settings(max_examples=scaled(200), deadline=None)
@given(st.integers(1, 2**62), st.integers(0, 9), st.data())
def test_an_order_of_any_length_is_looked_at_anywhere_without_the_rest(length, seed, data):
    positions = sorted(data.draw(st.sets(st.integers(0, length - 1), min_size=1, max_size=40)))
    samples = shuffle_positions(np.array(positions), length, seed, 0)
    assert len(set(samples.tolist())) == len(positions)
    assert all(0 <= sample < length for sample in samples)
    assert [shuffle_positions(np.array([at]), length, seed, 0)[0] for at in positions] == samples.tolist()


def test_an_order_never_changes_since_saved_cursors_point_into_it():
    assert order(10) == [0, 3, 7, 4, 5, 9, 6, 1, 2, 8]
    assert shuffle_positions(np.arange(3), 1_000, 42, 7).tolist() == [490, 957, 891]
    assert shuffle_positions(np.array([0, 2**61]), 2**62, 1, 1).tolist() == [776507616669435281, 3791171753851237553]


def test_orders_are_even_and_owe_nothing_to_one_another():
    """Each twentieth of the positions over 400 epochs: chi square of 361 degrees, below its 0.1 % point."""
    table, along, still = np.zeros((20, 20)), [], 0
    places = np.arange(1_000)
    for epoch in range(400):
        samples = shuffle_positions(places, 1_000, 7, epoch)
        np.add.at(table, (places // 50, samples // 50), 1)
        along.append(np.corrcoef(samples[:-1], samples[1:])[0, 1])
        still += int((samples == places).sum())
    expected = table.mean()
    assert ((table - expected) ** 2 / expected).sum() < 449
    assert abs(np.mean(along)) < 0.01  # a neighbour says nothing of the next
    assert 300 < still < 500  # one sample in each epoch stays in its place, on average


def test_seeds_and_epochs_give_orders_of_their_own():
    assert len({tuple(order(50, seed, epoch)) for seed in range(20) for epoch in range(20)}) == 400


def test_without_shuffling_samples_come_as_they_lie():
    plan = ElasticSampler(10, seed=0, shuffle=False).plan(ElasticBatch(4), world=2, rank=1)
    assert list(plan) == [[1, 3], [5, 7], [9]]


def test_a_pass_without_samples_gets_the_first_of_its_batch_at_weight_zero():
    sampler = ElasticSampler(7, seed=0, shuffle=False)
    plan = sampler.plan(ElasticBatch(3), world=3, rank=2)
    assert [(samples, step.weight) for step, samples in plan.over(plan)] == [([2], 1.0), ([5], 1.0), ([6], 0.0)]
    late = sampler.plan(ElasticBatch(3, 1), world=2, rank=1)
    assert [(samples, step.weight) for step, samples in late.over(late)] == [
        *[([1], 2 / 3), ([0], 0.0)],
        *[([4], 2 / 3), ([3], 0.0)],
        *[([6], 0.0)],
    ]


@pytest.mark.parametrize(
    ("drop_last", "sizes", "left"),
    [
        pytest.param(False, [4, 4, 2], 0, id="the last batch is short and weighs its samples as it should"),
        pytest.param(True, [4, 4], 2, id="or it is left out"),
    ],
)
def test_the_end_of_an_epoch(drop_last, sizes, left):
    sampler = ElasticSampler(10, seed=1)
    plan = sampler.plan(ElasticBatch(4), **ALONE, drop_last=drop_last)
    assert len(plan) == len(sizes)
    for (step, samples), size in zip(plan.over(plan), sizes, strict=True):
        assert (step.global_samples, step.weight, len(samples)) == (size, 1.0, size)
        sampler.done(step.global_samples)
    assert sampler.left == left
    assert len(plan) == 0
    assert list(plan) == []


@settings(max_examples=scaled(200), deadline=None)
@given(
    st.integers(1, 60), st.integers(1, 30), st.none() | st.integers(1, 5), st.integers(1, 7), st.booleans(), st.data()
)
def test_the_length_of_a_plan_is_how_much_it_yields_on_every_rank(length, size, micro, world, drop_last, data):
    sampler = ElasticSampler(length, seed=0)
    sampler.load_state_dict(sampler.state_dict() | {"cursor": data.draw(st.integers(0, length))})
    for rank in range(world):
        plan = sampler.plan(ElasticBatch(size, micro), world=world, rank=rank, drop_last=drop_last)
        assert len(list(plan)) == len(plan) == len(list(plan.over(plan)))


def test_looking_ahead_moves_no_cursor_and_a_new_look_starts_at_it():
    sampler = ElasticSampler(12, seed=3)
    plan = sampler.plan(ElasticBatch(4), **ALONE)
    early = iter(plan)
    samples = [next(early), next(early)]
    assert sampler.cursor == 0
    sampler.done(4)
    assert next(iter(plan)) == samples[1]
    assert len([*samples, *early]) == 3  # what was begun goes on as it began


def test_one_plan_serves_every_epoch():
    sampler = ElasticSampler(6, seed=3)
    plan = sampler.plan(ElasticBatch(6), **ALONE)
    first = next(iter(plan))
    sampler.done(6)
    sampler.next_epoch()
    second = next(iter(plan))
    assert sorted(first) == sorted(second)
    assert first != second


def test_a_loader_of_something_else_is_told():
    plan = ElasticSampler(6, seed=3).plan(ElasticBatch(2), **ALONE)
    with pytest.raises(ValueError, match="shorter"):
        list(plan.over(["one pass only"]))


def test_the_state_is_four_numbers_that_go_through_json():
    sampler = ElasticSampler(10, seed=5)
    sampler.done(10)
    sampler.next_epoch()
    sampler.done(4)
    state = sampler.state_dict()
    assert state == {"seed": 5, "epoch": 1, "cursor": 4, "length": 10}
    second_sampler = ElasticSampler(10, seed=5)
    second_sampler.load_state_dict(json.loads(json.dumps(state)))
    rest, same = sampler.plan(ElasticBatch(3), **ALONE), second_sampler.plan(ElasticBatch(3), **ALONE)
    assert list(rest) == list(same)


STATE = {"seed": 5, "epoch": 1, "cursor": 4, "length": 10}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        pytest.param(STATE | {"length": 11}, "is of 11 samples, the data set has 10", id="another length"),
        pytest.param(STATE | {"seed": 6}, "has seed 6, the sampler seed 5", id="another seed"),
        pytest.param(STATE | {"seed": -1}, "has no shuffling, the sampler seed 5", id="an order without shuffling"),
        pytest.param(STATE | {"cursor": 11}, "outside its data: epoch 1, cursor 11", id="a cursor past the end"),
        pytest.param(STATE | {"epoch": -1}, "outside its data: epoch -1", id="an epoch before the first"),
        pytest.param({"seed": 5, "epoch": 1}, "seed, epoch, cursor, length are needed", id="half of a state"),
        pytest.param(STATE | {"rank": 3}, "seed, epoch, cursor, length are needed", id="somebody else's state"),
        pytest.param(STATE | {"cursor": 4.0}, "whole numbers", id="a cursor that is no whole number"),
    ],
)
def test_a_state_of_another_order_is_refused_and_changes_nothing(state, message):
    sampler = ElasticSampler(10, seed=5)
    with pytest.raises(OtherData, match=message):
        sampler.load_state_dict(state)
    assert (sampler.epoch, sampler.cursor) == (0, 0)


def test_a_state_without_shuffling_is_no_state_of_a_shuffled_sampler():
    in_line = ElasticSampler(10, seed=5, shuffle=False)
    with pytest.raises(OtherData, match="has seed 5, the sampler no shuffling"):
        in_line.load_state_dict(STATE)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        pytest.param(lambda s: s.done(0), BadData, "0 samples are committed", id="committing nothing"),
        pytest.param(lambda s: s.done(11), BadData, "11 samples are committed, 10 are left", id="more than is left"),
        pytest.param(
            lambda s: s.next_epoch(), BadData, "10 samples of epoch 0 are not committed", id="losing the rest"
        ),
        pytest.param(lambda s: s.plan(ElasticBatch(2), world=2, rank=2), BadBatch, "rank 2", id="a rank outside"),
        pytest.param(lambda s: ElasticSampler(0, seed=1), BadData, "0 samples: 1 to", id="no data"),
        pytest.param(lambda s: ElasticSampler(2, seed=-1), BadData, "the seed is -1", id="a seed that stands for none"),
    ],
)
def test_what_would_lose_samples_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call(ElasticSampler(10, seed=5))


def test_the_rest_is_dropped_where_somebody_says_so():
    sampler = ElasticSampler(10, seed=5)
    sampler.done(8)
    sampler.next_epoch(drop_rest=True)
    assert (sampler.epoch, sampler.cursor, sampler.left) == (1, 0, 10)

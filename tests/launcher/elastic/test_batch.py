"""A global batch is the same batch in a world of any size, and so is its gradient."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.elastic.batch import BadBatch, ElasticBatch

BATCHES = st.builds(ElasticBatch, st.integers(1, 200), st.none() | st.integers(1, 50))


def shares(batch, world, samples=None):
    return [batch.share(world, rank, samples) for rank in range(world)]


@pytest.mark.parametrize(
    ("batch", "world", "passes"),
    [
        pytest.param(ElasticBatch(12), 1, [[12]], id="alone, all at once"),
        pytest.param(ElasticBatch(12), 4, [[3], [3], [3], [3]], id="four share alike"),
        pytest.param(ElasticBatch(12), 5, [[3], [3], [2], [2], [2]], id="an uneven share for five"),
        pytest.param(ElasticBatch(2), 3, [[1], [1], [0]], id="a rank without samples makes its pass"),
        pytest.param(ElasticBatch(12, 4), 1, [[4, 4, 4]], id="no pass above the micro batch"),
        pytest.param(ElasticBatch(10, 2), 2, [[2, 2, 1], [2, 2, 1]], id="a short pass comes last"),
        pytest.param(ElasticBatch(5, 1), 2, [[1, 1, 1], [1, 1, 0]], id="as many passes as the largest share needs"),
        pytest.param(ElasticBatch(9, 8), 2, [[5], [4]], id="a micro batch that is never filled"),
    ],
)
def test_what_each_rank_takes(batch, world, passes):
    assert [[step.samples for step in share] for share in shares(batch, world)] == passes


@settings(max_examples=scaled(500), deadline=None)
@given(BATCHES, st.integers(1, 64), st.data())
def test_in_every_world_the_ranks_take_exactly_the_batch(batch, world, data):
    samples = data.draw(st.none() | st.integers(1, batch.global_batch))
    size = samples or batch.global_batch
    every = shares(batch, world, samples)
    assert sorted(at for share in every for step in share for at in step.takes) == list(range(size))
    assert {len(share) for share in every} == {batch.passes(world, samples)}
    assert all([step.sync for step in share] == [False] * (len(share) - 1) + [True] for share in every)
    assert {step.global_samples for share in every for step in share} == {size}
    maximum = max(step.samples for share in every for step in share)
    assert maximum <= (batch.micro_batch or size)


@settings(max_examples=scaled(500), deadline=None)
@given(BATCHES, st.integers(1, 64))
def test_the_equal_mean_over_ranks_weighs_every_sample_alike(batch, world):
    """Each sample counts weight / samples of its pass / world in what DDP averages: 1 / global batch is wanted."""
    for share in shares(batch, world):
        for step in share:
            assert step.weight == float(Fraction(step.samples * world, batch.global_batch))
            if not step.samples:
                assert step.weight == 0.0


@settings(max_examples=scaled(200), deadline=None)
@given(BATCHES, st.integers(1, 64))
def test_shares_differ_by_one_sample_at_most_and_so_do_passes(batch, world):
    every = shares(batch, world)
    totals = [sum(step.samples for step in share) for share in every]
    assert max(totals) - min(totals) <= 1
    assert all(max(step.samples for step in s) - min(step.samples for step in s) <= 1 for s in every)


def test_even_shares_need_no_weight():
    assert {step.weight for share in shares(ElasticBatch(64), 8) for step in share} == {1.0}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda: ElasticBatch(0), "the global batch is 0", id="a batch of none"),
        pytest.param(lambda: ElasticBatch(4, 0), "the micro batch is 0", id="a pass of none"),
        pytest.param(lambda: ElasticBatch(4).share(0, 0), "a world of 0 ranks", id="a world of none"),
        pytest.param(lambda: ElasticBatch(4).share(2, 2), "rank 2 is not in a world of 2", id="a rank outside"),
        pytest.param(lambda: ElasticBatch(4).share(2, -1), "rank -1 is not in a world of 2", id="a negative rank"),
        pytest.param(lambda: ElasticBatch(4).share(2, 0, 5), "a batch of 5 samples: 1 to 4", id="more than the batch"),
        pytest.param(lambda: ElasticBatch(4).passes(2, 0), "a batch of 0 samples: 1 to 4", id="a last batch of none"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(BadBatch, match=message):
        call()

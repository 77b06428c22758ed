"""No sample is lost and none is repeated, whatever worlds an epoch goes through and however they end."""

import json
from collections import Counter, deque
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.elastic.batch import ElasticBatch
from turnout.launcher.elastic.sampler import ElasticSampler, shuffle_positions

EPOCHS, SEED = 2, 11


@dataclass(frozen=True)
class Leg:
    """A world from its start to its end. It commits some batches, and saves after some of those."""

    world: int
    commits: int
    save_every: int
    ahead: int  # passes that a loader fetches before they are asked for
    torn: int  # ranks that have begun the next batch when the world ends


LEGS = st.lists(
    st.builds(Leg, st.integers(1, 7), st.integers(0, 9), st.integers(1, 4), st.integers(0, 5), torn=st.integers(0, 7)),
    max_size=8,
)


@dataclass
class Rank:
    """One process: its own sampler, which it loads from what was saved, and a loader that runs ahead."""

    sampler: ElasticSampler
    passes: object

    @classmethod
    def starting(cls, leg, rank, length, batch, state):
        sampler = ElasticSampler(length, seed=SEED)
        if state is not None:
            sampler.load_state_dict(json.loads(state))
        plan = sampler.plan(batch, world=leg.world, rank=rank)
        return cls(sampler, plan.over(running_ahead(plan, leg.ahead)))

    def next_batch(self):
        """(Its samples, how many passes, how many samples the batch has) of the next batch."""
        mine = []
        for number, (step, samples) in enumerate(self.passes, start=1):
            assert len(samples) == max(step.samples, 1)
            mine += samples if step.samples else []
            if step.sync:
                return mine, number, step.global_samples
        return None


def running_ahead(plan, ahead):
    fetched, rest = deque(), iter(plan)
    fetched.extend(islice(rest, ahead))
    for samples in rest:
        fetched.append(samples)
        yield fetched.popleft()
    yield from fetched


def train(legs, length, batch):
    """The batches of which the model that is left at the end was made: (epoch, samples), in order."""
    state, samples_by_leg = None, []
    for leg in [*legs, Leg(1, EPOCHS * length, 1, 0, torn=0)]:
        ranks = [Rank.starting(leg, rank, length, batch, state) for rank in range(leg.world)]
        unsaved, commits = [], 0
        while commits < leg.commits and ranks[0].sampler.epoch < EPOCHS:
            together = [rank.next_batch() for rank in ranks]
            if together[0] is None:
                assert together == [None] * leg.world
                for number, rank in enumerate(ranks):
                    rank.sampler.next_epoch()
                    plan = rank.sampler.plan(batch, world=leg.world, rank=number)
                    rank.passes = plan.over(running_ahead(plan, leg.ahead))
                continue
            samples = [sample for mine, _, _ in together for sample in mine]
            assert {size for _, _, size in together} == {len(samples)}
            assert len({passes for _, passes, _ in together}) == 1
            unsaved.append((ranks[0].sampler.epoch, sorted(samples)))
            for rank in ranks:
                rank.sampler.done(len(samples))
            commits += 1
            if commits % leg.save_every == 0:
                state = json.dumps(ranks[-1].sampler.state_dict())
                samples_by_leg, unsaved = samples_by_leg + unsaved, []
        for rank in ranks[: leg.torn]:
            rank.next_batch()
    return samples_by_leg


def undisturbed(length, batch):
    """The batches of the plain loop that never stops: each epoch's order, cut into batches."""
    for epoch in range(EPOCHS):
        order = shuffle_positions(np.arange(length), length, SEED, epoch).tolist()
        for first in range(0, length, batch.global_batch):
            yield epoch, sorted(order[first : first + batch.global_batch])


SCHEDULES = given(LEGS, st.integers(1, 40), st.builds(ElasticBatch, st.integers(1, 20), st.none() | st.integers(1, 4)))


@pytest.mark.contract("VE-07")
@settings(max_examples=scaled(150), deadline=None)
@SCHEDULES
def test_random_schedules_of_resizes_and_crashes_lose_and_repeat_nothing(legs, length, batch):
    check(legs, length, batch)


@pytest.mark.contract("VE-07")
@pytest.mark.long
@settings(max_examples=1_000, deadline=None)
@SCHEDULES
def test_1000_random_schedules_of_resizes_and_crashes_lose_repeat_nothing(legs, length, batch):
    check(legs, length, batch)


def check(legs, length, batch):
    samples_by_leg = train(legs, length, batch)
    for epoch in range(EPOCHS):
        counts = Counter(sample for of, samples in samples_by_leg for sample in samples if of == epoch)
        assert counts == Counter(range(length))
    assert samples_by_leg == list(undisturbed(length, batch))


@settings(max_examples=scaled(100), deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(1, 20)), min_size=1, max_size=8), st.integers(1, 80))
def test_a_global_batch_that_changes_with_the_world_loses_nothing_either(legs, length):
    sampler, trained = ElasticSampler(length, seed=2), []
    for world, size in [*legs, (1, length)]:
        plans = [sampler.plan(ElasticBatch(size), world=world, rank=rank) for rank in range(world)]
        ranks = [plan.over(plan) for plan in plans]
        for together in islice(zip(*ranks, strict=True), 2):
            trained += [sample for step, samples in together for sample in samples[: step.samples]]
            sampler.done(together[0][0].global_samples)
    rest = sampler.plan(ElasticBatch(1), world=1, rank=0)
    assert sorted([*trained, *(sample for samples in rest for sample in samples)]) == list(range(length))

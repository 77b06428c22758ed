"""Laws of `turnout why` over seeded clusters: it names the newest Event's reason, and a viewer gets the same answer."""

import asyncio
import dataclasses

import pytest

from tests.cli.verbs.why_world import Drawn, Served, events_of, viewer_may
from turnout.autoscaler.reporting.why import Chain
from turnout.autoscaler.settings import Settings
from turnout.cli.verb_support.autoscaler_view import look
from turnout.cli.verbs.why import explanation_of
from turnout.jobs.kinds.registry import KINDS

TOGETHER = 10  # clusters of one test
QUICK, SEEDS = 70, 200  # clusters of `make test`, and of `make test-slow` beside them
FIRSTS = [
    *range(0, QUICK, TOGETHER),
    *(pytest.param(at, marks=pytest.mark.slow) for at in range(QUICK, SEEDS, TOGETHER)),
]


async def answers(source):
    """Ask about every job and gang of a cluster: what is told, by key, its moment left out."""
    settings = Settings()
    view = await look(source, settings, "default")
    keys = {each.job.key for each in view.observation.jobs} | set(view.gangs)
    explanations = {key: explanation_of(settings, view, key) for key in sorted(keys)}
    return {key: _still(each) if isinstance(each, Chain) else each for key, each in explanations.items()}


@pytest.fixture(scope="module")
def admins():
    """The answers of an admin, by seed: both laws ask for them."""
    return {}


async def admins_answers(admins, seed, drawn):
    if seed not in admins:
        admins[seed] = await answers(Served(drawn.items))
    return admins[seed]


def _still(chain):
    """A chain without what two looks a moment apart may tell otherwise."""
    start = chain.start and dataclasses.replace(chain.start, early_s=0.0, likely_s=0.0, late_s=0.0)
    return dataclasses.replace(chain, now_s=0.0, start=start)


@pytest.mark.contract("XD-07")
@pytest.mark.asyncio
@pytest.mark.parametrize("first", FIRSTS)
async def test_why_names_the_reason_of_the_newest_event(first, admins):
    matches = 0
    for seed in range(first, first + TOGETHER):
        drawn = Drawn(seed)
        newest, why = await asyncio.gather(events_of(drawn), admins_answers(admins, seed, drawn))
        for key, chain in why.items():
            if not isinstance(chain, Chain):
                continue
            kind = KINDS[key.kind].object_kind or key.kind if key.kind in KINDS else key.kind
            if (kind, key.name) in newest:
                assert newest[kind, key.name] == chain.reason.value, f"seed {seed}: {key}"
                matches += 1
    assert matches, "no cluster of these had an Event"


@pytest.mark.asyncio
@pytest.mark.parametrize("first", FIRSTS)
async def test_a_viewer_gets_the_answer_of_an_admin(first, admins):
    may = viewer_may()
    for seed in range(first, first + TOGETHER):
        drawn = Drawn(seed)
        viewer = await answers(Served(drawn.items, may))
        assert viewer == await admins_answers(admins, seed, drawn), f"seed {seed}"

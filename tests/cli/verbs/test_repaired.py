"""Sentences of `turnout why` on a job that has lost pods and waits for room near the rest."""

import pytest

from tests.kit import world
from turnout.cli.why import repair_of_job
from turnout.kube import labels


def pods(wish, running, waiting):
    notes = {labels.REPAIR: wish} if wish else {}
    return world.koordinator("g", running + waiting, at=[f"a{at}" for at in range(running)], notes=notes)


@pytest.mark.parametrize(("wish", "running", "waiting", "advice"), [
    pytest.param("", 4, 0, None, id="it is whole"),
    pytest.param("move", 0, 4, None, id="none of it runs"),
    pytest.param("move", 3, 0, None, id="nobody has made the pod that is missing"),
    pytest.param(
        "", 3, 1, "the rest waits for room near them: none of them moves, since no pod says turnout.dev/repair",
        id="its owner says nothing",
    ),
    pytest.param("wait", 3, 1, "the rest waits for room near them: none of them moves", id="its owner wishes so"),
    pytest.param(
        "move/300", 3, 1,
        "after 300 s without room for the rest, and as soon as all of it fits elsewhere, those that run are evicted "
        "(turnout.dev/repair: move, by turnout-nominator --repair)",
        id="it moves",
    ),
    pytest.param(
        "give-up", 3, 1,
        "after 120 s without room for the rest, those that run are evicted "
        "(turnout.dev/repair: give-up, by turnout-nominator --repair)",
        id="it gives up",
    ),
])  # fmt: skip
def test_what_becomes_of_it(wish, running, waiting, advice):
    found = repair_of_job(pods(wish, running, waiting), 4)
    assert (found is None) is (advice is None)
    if advice is not None:
        assert found.startswith("3 of the 4 that must run together have a node")
        assert found.endswith(advice)

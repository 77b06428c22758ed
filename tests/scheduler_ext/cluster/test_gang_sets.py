"""The sets of gangs that start together: found by name, and looked at only after a change."""

from types import SimpleNamespace

import pytest

from turnout.jobs.gang import Dialect, GangKey
from turnout.jobs.wishes.model import MAX_TOGETHER
from turnout.scheduler_ext.cluster.view import GangSets


class CountedGangs(dict):
    """Gangs by key, with the number of times that one was looked up."""

    lookups = 0

    def get(self, key, default=None):
        self.lookups += 1
        return super().get(key, default)


def gang(name, age, together="eval", namespace="default"):
    key = GangKey(namespace, name, Dialect.VOLCANO.value)
    return SimpleNamespace(
        key=key,
        age=("2026-01-01T00:00:00Z", age, name),
        terms=SimpleNamespace(sets=SimpleNamespace(together_name=together)),
    )


def known(*all_gangs):
    """The sets, and the gangs, of some gangs."""
    sets, gangs = GangSets(), CountedGangs({each.key: each for each in all_gangs})
    for each in all_gangs:
        sets.update(each.key, each)
    return sets, gangs


def names(sets, gangs, namespace="default", name="eval"):
    return [each.key.name for each in sets.oldest_gangs(namespace, name, gangs)]


def test_a_set_holds_the_gangs_of_its_name_and_namespace_the_oldest_first():
    sets, gangs = known(
        gang("young", 3), gang("old", 1), gang("other", 2, together="train"), gang("far", 0, namespace="team-b")
    )
    assert names(sets, gangs) == ["old", "young"]
    assert names(sets, gangs, name="train") == ["other"]
    assert names(sets, gangs, namespace="team-b") == ["far"]
    assert names(sets, gangs, name="unknown") == []


def test_of_a_large_set_only_the_oldest_start_together():
    sets, gangs = known(*(gang(f"g{at:03}", at) for at in reversed(range(MAX_TOGETHER + 5))))
    assert names(sets, gangs) == [f"g{at:03}" for at in range(MAX_TOGETHER)]


@pytest.mark.parametrize("change", ["it is gone", "it names another set", "it names no set"])
def test_a_gang_leaves_its_set(change):
    leaver, stays = gang("leaver", 1), gang("stays", 2)
    sets, gangs = known(leaver, stays)
    assert names(sets, gangs) == ["leaver", "stays"]
    if change == "it is gone":
        del gangs[leaver.key]
        sets.update(leaver.key, None)
    else:
        leaver.terms.sets.together_name = "train" if change == "it names another set" else ""
        sets.update(leaver.key, leaver)
    assert names(sets, gangs) == ["stays"]
    assert names(sets, gangs, name="train") == (["leaver"] if change == "it names another set" else [])


def test_a_question_about_an_unchanged_set_looks_at_no_gang():
    sets, gangs = known(*(gang(f"g{at}", at) for at in range(1_000)))
    names(sets, gangs)
    before = gangs.lookups
    for _ in range(100):
        names(sets, gangs)
    assert gangs.lookups == before
    sets.update(GangKey("default", "g5", Dialect.VOLCANO.value), gangs[GangKey("default", "g5", Dialect.VOLCANO.value)])
    names(sets, gangs)
    assert gangs.lookups == before + 1_000

"""The stories of the tenants' benchmark can show harm, and show none where nothing is said."""

import statistics

import pytest

from hack.bench.tenants import words_story
from hack.bench.tenants.attacks import ATTACKS, no_attack, without_annotations
from hack.bench.tenants.lending_attacks import ATTACKS as ON_JOBS
from hack.bench.tenants.lending_attacks import NONE
from hack.bench.tenants.lending_story import LendingStory
from hack.bench.tenants.story import SimulationSize, tell

SIZE = SimulationSize(nodes=100, seconds=600, every_s=12, at_once=1, quick=True)


def named(attacks, name):
    return next(each for each in attacks if each.name == name)


@pytest.mark.slow
def test_gangs_wait_and_wait_longer_beside_a_priority_of_an_admin():
    usual_waits, attacked_waits = (
        tell(SIZE, no_attack),
        tell(SIZE, named(ATTACKS, "pods of a high PriorityClass").attack),
    )
    assert 10.0 < statistics.fmean(usual_waits.wait_s) < statistics.fmean(attacked_waits.wait_s) / 1.2


def test_what_is_held_beside_an_attack_has_its_pods_and_no_words():
    attack = named(ATTACKS, "a total of a million, of GPUs").attack
    pods_with_notes, silent = list(attack(0, True)), list(without_annotations(attack)(0, True))
    assert [each["spec"] for each in pods_with_notes] == [each["spec"] for each in silent]
    assert [each["metadata"]["annotations"] for each in silent] == [{}, {}]


def test_a_pod_of_the_attacker_that_is_refused_is_no_lost_answer():
    small = SimulationSize(nodes=16, seconds=140, every_s=12, at_once=1, quick=True)
    assert tell(small, named(ATTACKS, "words that are no numbers").attack).neutral == 0


def test_jobs_wait_in_it_and_borrow_beside_one_another():
    outcome = LendingStory(1_500, NONE.attack, 20).run()
    assert statistics.fmean(outcome.wait_s) > 1.0
    assert min(outcome.size_s.values()) > 2 * 1_500 * 0.9


def test_a_min_raised_while_nobody_leads_costs_nobody_anything():
    attack = named(ON_JOBS, "a min raised while nobody leads").attack
    usual_outcome, attacked_outcome = (LendingStory(2_400, each, 20).run() for each in (NONE.attack, attack))
    assert (attacked_outcome.wait_s, attacked_outcome.faults) == (usual_outcome.wait_s, 0)


def test_lies_about_all_nodes_cost_some_and_hide_no_real_fault():
    honest_verdicts, verdicts_with_lies = words_story.verdicts(lies=False), words_story.verdicts(lies=True)
    assert (honest_verdicts.share, honest_verdicts.lost) == (1.0, 0)
    assert (round(verdicts_with_lies.share * 98), verdicts_with_lies.lost) == (93, 0)  # five of the hundred nodes
    assert verdicts_with_lies.wait_s == honest_verdicts.wait_s == [0.0, 0.0]


def test_events_wait_longer_beside_a_flood_and_none_is_lost():
    usual_events, flooded_events = words_story.events(flood=False), words_story.events(flood=True)
    assert statistics.fmean(usual_events.wait_s) < statistics.fmean(flooded_events.wait_s) < 1.0
    assert len(flooded_events.wait_s) == len(usual_events.wait_s)
    assert flooded_events.lost == 0

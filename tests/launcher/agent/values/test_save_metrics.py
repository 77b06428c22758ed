"""The metrics of saves: each end of a save is counted once, from 0, and the asked interval is that of the training."""

from itertools import product

import pytest
from prometheus_client import CollectorRegistry

from turnout.launcher.agent.save_metrics import INTERVALS, SaveIntervals, SaveMetrics
from turnout.launcher.model import SaveOutcome, SaveTier

LAST, INTERVAL = "last_save_timestamp_seconds", "save_interval_seconds"
END = {
    "step": 5,
    "round": 1,
    "rank": 0,
    "tier": SaveTier.STORAGE,
    "outcome": SaveOutcome.DONE,
    "complete": True,
    "announced_s": 100.0,
    "ended_s": 130.0,
}


def value(metrics, name, **labels):
    return metrics.get_sample_value(f"turnout_launcher_{name}", {"run": "bert", **labels})


def counted(*events):
    """Return the registry after these ends of saves."""
    registry = CollectorRegistry()
    metrics = SaveMetrics(registry, "bert")
    for fields in events:
        metrics.count_event("save_ended", {**END, **fields})
    return registry


def test_every_outcome_of_every_tier_starts_at_0_and_no_time_is_known():
    registry = counted()
    for tier, outcome in product(SaveTier, SaveOutcome):
        assert value(registry, "saves_total", tier=tier.value, outcome=outcome.value) == 0
        assert value(registry, LAST, tier=tier.value) is None
        assert value(registry, INTERVAL, tier=tier.value) is None


@pytest.mark.parametrize(
    ("events", "name", "labels", "expected"),
    [
        pytest.param([{}], "saves_total", {"outcome": "done"}, 1, id="a committed step is done"),
        pytest.param([{}, {"step": 6}], "saves_total", {"outcome": "done"}, 2, id="each save counts"),
        pytest.param(
            [{"outcome": SaveOutcome.FAILED}], "saves_total", {"outcome": "failed"}, 1, id="a failed save is a failure"
        ),
        pytest.param([{}], LAST, {}, 130.0, id="a complete save is the newest"),
        pytest.param([{"complete": False}], LAST, {}, None, id="a shard alone is no complete save"),
        pytest.param([{}, {"ended_s": 120.0}], LAST, {}, 130.0, id="an older save changes nothing"),
        pytest.param([{}, {"step": 6, "announced_s": 160.0}], INTERVAL, {}, 60.0, id="the interval of two saves"),
        pytest.param(
            [{"outcome": SaveOutcome.FAILED}, {"step": 6, "announced_s": 160.0, "outcome": SaveOutcome.FAILED}],
            INTERVAL,
            {},
            60.0,
            id="failed saves were asked for, too",
        ),
        pytest.param(
            [{}, {"step": 6, "announced_s": 0.0}], INTERVAL, {}, None, id="a save that the agent orders has no time"
        ),
    ],
)
def test_the_series_after_some_saves(events, name, labels, expected):
    assert value(counted(*events), name, tier="storage", **labels) == expected


def test_a_tier_has_an_interval_of_its_own():
    memory = [{"tier": SaveTier.MEMORY, "step": step, "announced_s": 100.0 + step} for step in range(5)]
    registry = counted(*memory, {}, {"step": 10, "announced_s": 700.0})
    assert value(registry, INTERVAL, tier="memory") == 1.0
    assert value(registry, INTERVAL, tier="storage") == 600.0


def test_an_event_of_another_name_counts_nothing():
    registry = CollectorRegistry()
    SaveMetrics(registry, "bert").count_event("world_formed", {"round": 2})
    assert value(registry, "saves_total", tier="storage", outcome="done") == 0


@pytest.mark.parametrize(
    ("saves", "longest_s"),
    [
        pytest.param([(1, 1, 10.0)], 0.0, id="one save has no interval"),
        pytest.param([(1, 1, 10.0), (1, 1, 11.0), (1, 2, 40.0)], 30.0, id="a second rank of a step adds nothing"),
        pytest.param([(1, 1, 10.0), (1, 2, 40.0), (1, 3, 41.0)], 30.0, id="the longest counts"),
        pytest.param(
            [(1, 1, 10.0), (2, 2, 900.0), (2, 3, 940.0)], 40.0, id="the time between two rounds is no interval"
        ),
        pytest.param([(1, 9, 10.0), (2, 3, 900.0), (2, 4, 930.0)], 30.0, id="a new round repeats steps"),
        pytest.param(
            [(1, 0, 0.0), *((1, step, 500.0 + step) for step in range(1, INTERVALS + 2))],
            1.0,
            id="an old one is forgotten",
        ),
    ],
)
def test_the_interval_that_the_training_asks_for(saves, longest_s):
    intervals = SaveIntervals()
    for save in saves:
        intervals.add(*save)
    assert intervals.longest_s == longest_s

"""When waiting jobs may start: what is told, how sure it is, and whether it comes true."""

import heapq
import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.test_laws import worlds
from tests.autoscaler.world import NOW_S, POLICY, job, state_of, world
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.decide import decide
from turnout.autoscaler.reporting.forecast import (
    MAX_RUN_TIMES,
    MAX_WAITERS,
    ForecastCache,
    RuntimeStats,
    forecast,
    run_time_s,
)


def forecasts_of(at, lives=None, now_s=NOW_S, **more):
    """Estimates by name, in seconds from now."""
    found = forecast(at, decide(at, POLICY, now_s), lives or RuntimeStats(), now_s, **more)
    return {key.name: (each.early_s - now_s, each.likely_s - now_s, each.late_s - now_s) for key, each in found.items()}


def because(at, name, **more):
    found = forecast(at, decide(at, POLICY, NOW_S), more.pop("lives", RuntimeStats()), NOW_S, **more)
    return next(each.because for key, each in found.items() if key.name == name)


def running(name, gpus=4, ran_s=1000.0, **more):
    """A rigid job that has run for so long."""
    observed_job = state_of(job(name, minimum=gpus, maximum=gpus, **more), [0] * gpus)
    return replace(observed_job, workers=tuple(replace(w, since_s=NOW_S - ran_s) for w in observed_job.workers))


def history(*lived, queue="q"):
    lives = RuntimeStats()
    for each in lived:
        lives.add(queue, each)
    return lives


NEVER = (float("inf"),) * 3
WAITS = state_of(job("waits", minimum=4, maximum=4))


def test_room_that_is_there_or_on_its_way_is_a_matter_of_seconds():
    assert forecasts_of(world([4], WAITS)) == {"waits": (0, 5, 60)}
    lent = state_of(job("a", minimum=1, replicas=4), [0] * 4)
    assert forecasts_of(world([4], lent, state_of(job("b", minimum=3, maximum=3)))) == {"b": (0, 15, 35)}


@pytest.mark.parametrize(
    ("more", "says"),
    [
        pytest.param(
            {"queues": {"q": {"limit": 3}}}, "never: its min is more than its queue may have", id="over quota"
        ),
        pytest.param({"queues": {"q": {"open": False}}}, "not before its queue is open again", id="closed"),
        pytest.param({"complete": False}, "nobody can say: the observation cannot be trusted", id="a list failed"),
    ],
)
def test_what_will_not_start_by_waiting_gets_no_time_and_the_reason(more, says):
    at = world([4], WAITS, **more)
    assert forecasts_of(at) == {"waits": NEVER}
    assert because(at, "waits") == says


def test_a_job_that_does_not_fit_an_empty_cluster_waits_for_no_end():
    assert because(world([2], WAITS), "waits") == "beyond what can be foreseen: no job runs whose end would make room"


def test_without_any_history_a_job_is_expected_to_run_as_long_again():
    at = world([4], running("a", ran_s=1000), WAITS)
    early, likely, late = forecasts_of(at)["waits"]
    assert 0 < early < 500 < likely < 2000 < late
    assert "a guess" in because(at, "waits")


def test_with_a_history_it_is_told_by_how_long_jobs_have_run():
    at = world([4], running("a", ran_s=1000), WAITS)
    early, likely, late = forecasts_of(at, history(*range(1100, 2100, 10)))["waits"]
    assert 100 <= early < 400 < likely < 700 < late <= 1100
    assert "a guess" not in because(at, "waits", lives=history(*range(1100, 2100, 10)))


def test_a_job_that_has_outlived_all_others_is_expected_to_run_as_long():
    at = world([4], running("a", ran_s=5000), WAITS)
    assert forecasts_of(at, history(*[100.0] * 50))["waits"][1] > 1000


def test_too_short_a_history_of_a_queue_is_made_up_for_by_all_queues():
    lives = history(*[100.0] * 7)
    assert len(lives.of("q")) == 0
    lives.add("other", 100.0)
    assert len(lives.of("q")) == len(lives.of("nobody's")) == 8


def test_where_only_told_is_what_would_be_done_nobody_leaves():
    lent = replace(running("a", ran_s=1000), job=job("a", minimum=1, maximum=4, replicas=4))
    at = world([4], lent, WAITS)
    assert forecasts_of(at, dry_run=False) == {"waits": forecasts_of(at, dry_run=False)["waits"]}
    assert forecasts_of(world([4], lent, state_of(job("b", minimum=3, maximum=3))), dry_run=True)["b"][1] > 500


def test_who_waits_behind_others_starts_after_them():
    many = [state_of(job("w" * number, minimum=4, maximum=4)) for number in range(1, 6)]
    found = forecasts_of(world([4], running("a"), *many), history(*range(500, 2000, 10)))
    middles = [found["w" * number][1] for number in range(1, 6)]
    assert middles == sorted(middles)
    assert middles[0] < middles[4]


def test_a_waiter_that_needs_a_whole_node_is_not_served_by_scattered_room():
    both = [running(name, gpus=2) for name in "ab"]
    both = [replace(each, workers=tuple(replace(w, row=row) for w in each.workers)) for row, each in enumerate(both)]
    lives = history(*range(1100, 2100, 10))
    either = forecasts_of(world([2, 2], *both, state_of(job("whole", minimum=1, maximum=1, gpus=2))), lives)["whole"]
    never = forecasts_of(world([2, 2], *both, state_of(job("whole", minimum=1, maximum=1, gpus=4))), lives)["whole"]
    assert either[2] < 1100
    assert never[1:] == (float("inf"),) * 2


def test_a_queue_that_stays_full_lets_nobody_in_whatever_the_nodes_have():
    full = {"q": {"limit": 4}, "r": {}}
    other = running("b", queue="r")
    late = forecasts_of(
        world([12], running("a", ran_s=1000), other, WAITS, queues=full), history(*range(5000, 6000, 10))
    )
    assert late["waits"][0] >= 4000


def test_only_so_many_are_looked_at_and_the_others_are_told_so():
    many = [state_of(job(f"w{number:03}", minimum=4, maximum=4)) for number in range(MAX_WAITERS + 3)]
    at = world([4], running("a"), *many)
    found = forecast(at, decide(at, POLICY, NOW_S), RuntimeStats(), NOW_S)
    assert sum("nobody looks farther" in each.because for each in found.values()) == 3


def test_at_work_the_autoscaler_estimates_anew_every_ten_seconds():
    at, outlook, questions = world([4], WAITS), ForecastCache(), []

    def starts(now_s):
        found = outlook.start_times(
            at, decide(at, POLICY, now_s), lambda: questions.append(now_s) or [], now_s, dry_run=False
        )
        return [each[0] for each in found.values()]

    assert [starts(NOW_S + s) for s in (0, 9, 10, 19)] == [[NOW_S], [NOW_S], [NOW_S + 10], [NOW_S + 10]]
    assert starts(NOW_S - 100) == [NOW_S - 100]  # a clock that was set back
    assert questions == [NOW_S, NOW_S + 10, NOW_S - 100]


def test_only_what_can_be_told_in_full_is_handed_on():
    at = world([4], running("a"), WAITS, state_of(job("more", minimum=9, maximum=9)))
    found = ForecastCache().start_times(at, decide(at, POLICY, NOW_S), list, NOW_S, dry_run=False)
    assert [key.name for key in found] == ["waits"]


@settings(max_examples=scaled(150), deadline=None)
@given(worlds(), st.lists(st.floats(1, 1e5), max_size=20), st.booleans())
def test_estimates_are_ordered_repeatable_and_there_for_all_who_wait(at, lived, dry_run):
    steps = decide(at, POLICY, NOW_S)
    found = forecast(at, steps, history(*lived), NOW_S, dry_run)
    assert found.keys() == {each.job.key for each in at.jobs if each.is_waiting}
    assert all(NOW_S <= each.early_s <= each.likely_s <= each.late_s for each in found.values())
    assert found == forecast(at, steps, history(*lived), NOW_S, dry_run)


@given(
    st.lists(st.floats(0.1, 1e6), max_size=30), st.floats(0, 1e6), st.lists(st.floats(0, 0.999), min_size=2, max_size=9)
)
def test_a_larger_chance_is_never_a_shorter_time(lived, age, chances):
    left = history(*lived).remaining_s([("q", 1)], np.array([age]), np.array(sorted(chances))[:, None])[:, 0]
    assert (left >= 0).all()
    assert (np.diff(left) >= -1e-6 * np.abs(left[1:])).all()


def draw(dice, how):
    return dice.expovariate(1 / 3600) if how == "exponential" else dice.lognormvariate(7.5, 1.2)


def in_the_middle(dice, how, gpus=64, after_s=40_000):
    """A cluster that has been full for hours: (ends, began, GPUs) of who runs, and how many GPUs are left over."""
    runs, free, now_s = [], gpus, 0.0
    while now_s < after_s:
        asks = dice.choice([1, 2, 4, 8])
        while asks > free:
            now_s, _, left = heapq.heappop(runs)
            free += left
        free -= asks
        heapq.heappush(runs, (now_s + draw(dice, how), now_s, asks))
    return [(end - now_s, began - now_s, asks) for end, began, asks in runs], free


def come_true(how, seed):
    """Return the forecasts for the jobs that wait on one cluster, and their real starts.

    Running jobs run on for as long as was drawn when they began. Waiting jobs start in turn as soon as they fit. No job
    comes later.
    """
    dice, lives = random.Random(seed), RuntimeStats()
    for _ in range(100):
        lives.add("q", draw(dice, how))
    runs, free = in_the_middle(dice, how)
    jobs = [
        running(f"r{n:02}", gpus, -began, created="2026-01-01T00:00:00Z") for n, (_, began, gpus) in enumerate(runs)
    ]
    asks = [free + 1 + dice.choice([0, 1, 3]), *(dice.choice([1, 2, 4, 8]) + free for _ in range(5))]
    waiting_jobs = [
        state_of(job(f"w{n}", gpus, gpus, created=f"2026-01-02T00:00:0{n}Z")) for n, gpus in enumerate(asks)
    ]
    at = world([64], *jobs, *waiting_jobs)
    found = forecast(at, decide(at, POLICY, NOW_S), lives, NOW_S)
    ends, waiting, started = [(end, gpus) for end, _, gpus in runs], dict(enumerate(asks)), []
    heapq.heapify(ends)
    while waiting:
        at_s, gpus = heapq.heappop(ends)
        free += gpus
        for number in sorted(waiting):
            if waiting[number] <= free:
                free -= waiting[number]
                heapq.heappush(ends, (at_s + draw(dice, how), waiting.pop(number)))
                started.append((found[waiting_jobs[number].job.key], NOW_S + at_s))
    return started


@pytest.mark.parametrize("how", ["exponential", "lognormal"])
def test_as_many_start_by_the_late_bound_as_it_promises(how):
    results = [each for seed in range(120) for each in come_true(how, seed)]
    by_late = sum(real <= each.late_s for each, real in results) / len(results)
    before_early = sum(real < each.early_s for each, real in results) / len(results)
    by_likely = sum(real <= each.likely_s for each, real in results) / len(results)
    assert len(results) > 400
    assert by_late >= 0.85
    assert before_early <= 0.15
    assert 0.35 <= by_likely <= 0.65


@pytest.mark.parametrize(
    ("status", "lived"),
    [
        pytest.param(
            {"startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T01:00:00Z"},
            3600,
            id="a Job, a PyTorchJob",
        ),
        pytest.param(
            {
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{"type": "Failed", "status": "True", "lastTransitionTime": "2026-01-01T00:10:00Z"}],
            },
            600,
            id="one that failed has no completionTime",
        ),
        pytest.param(
            {
                "state": {"phase": "Completed", "lastTransitionTime": "2026-01-01T00:02:00Z"},
                "conditions": [
                    {"status": "Pending", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                    {"status": "Running", "lastTransitionTime": "2026-01-01T00:01:00Z"},
                    {"status": "Completed", "lastTransitionTime": "2026-01-01T00:02:00Z"},
                ],
            },
            60,
            id="a Volcano Job, by its phases",
        ),
        pytest.param({"runningDuration": "1h2m3.5s"}, 3723.5, id="a Volcano Job that says it"),
        pytest.param({"startTime": "2026-01-01T00:00:00Z"}, None, id="one that runs"),
        pytest.param({"conditions": [{"type": "Complete", "status": "False"}]}, None, id="nothing is known"),
        pytest.param({"startTime": "soon", "completionTime": "later"}, None, id="no times at all"),
        pytest.param({}, None, id="no status"),
    ],
)
def test_how_long_a_job_has_run_by_its_own_status(status, lived):
    assert run_time_s({"status": status}) == lived


def test_a_job_that_has_ended_is_counted_once_and_what_is_kept_is_bounded():
    raw = {"status": {"runningDuration": "10s"}}
    lives = RuntimeStats()
    for _ in range(3):
        lives.add_ended([(f"u{number}", "q", raw) for number in range(MAX_RUN_TIMES)])
    assert len(lives.of("q")) == MAX_RUN_TIMES
    lives.add_ended([("new", "q", {"status": {"runningDuration": "30s"}})])
    assert (len(lives.of("q")), lives.of("q")[-1]) == (MAX_RUN_TIMES, 30.0)

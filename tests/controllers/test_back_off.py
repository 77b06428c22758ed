"""A pod that fails again and again is made anew ever later: the kubelet's pauses, by index, kept in the status."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.controllers import elasticjobs
from tests.controllers.jobs import NOW_S, job, looked, pod, role, with_status
from tests.kit.hypothesis_examples import scaled
from turnout.controllers.model import Create, PodPhase, Reason
from turnout.controllers.role_pods import RETRIES_AT_ONCE, BackOff, pause_s


@pytest.mark.parametrize(
    ("failures", "expected_s"),
    [
        pytest.param(0, 0, id="none"),
        pytest.param(1, 0, id="the first"),
        pytest.param(3, 0, id="the third"),
        pytest.param(4, 10, id="the fourth"),
        pytest.param(5, 20, id="the fifth"),
        pytest.param(8, 160, id="the eighth"),
        pytest.param(9, 300, id="the ninth, where it stays"),
        pytest.param(64, 300, id="any other"),
    ],
)
def test_the_pause_after_so_many_failures_in_a_row(failures, expected_s):
    assert pause_s(failures) == expected_s


def failing(times, uid="u", now_s=NOW_S, **more):
    """Return what stands in a status after a worker has failed so often, one pod after another."""
    memory = {}
    for number in range(times):
        one = pod(1, PodPhase.FAILED, **{"started_s": now_s - 5, "ended_s": now_s, **more})
        memory = BackOff.read(memory, now_s).with_failures([replace(one, uid=f"{uid}-{number}")]).status_fields(2)
    return memory


def test_an_index_waits_and_others_do_not():
    back_off = BackOff.read(failing(4), NOW_S + 3)
    assert (back_off.left_s(1), back_off.left_s(0)) == (7, 0)
    assert BackOff.read(failing(4), NOW_S + 10).left_s(1) == 0


def test_only_what_makes_an_index_wait_has_a_time():
    assert failing(3) == {"quickFailures": {"1": 3}}
    assert failing(4) == {"quickFailures": {"1": 4}, "lastFailures": {"1": int(NOW_S)}}
    assert failing(0) == {}


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        pytest.param({"started_s": NOW_S - 599, "ended_s": NOW_S}, 5, id="599 s"),
        pytest.param({"started_s": NOW_S - 600, "ended_s": NOW_S}, 1, id="600 s"),
        pytest.param({"started_s": NOW_S - 9_000, "ended_s": NOW_S - 8_900}, 5, id="100 s, long ago"),
        pytest.param({"started_s": NOW_S - 600}, 1, id="600 s, by its start alone"),
        pytest.param({}, 5, id="nobody knows how long"),
    ],
)
def test_failures_in_a_row_after_a_pod_that_ran_for(times, expected):
    failed = BackOff.read(failing(4), NOW_S).with_failures([pod(1, PodPhase.FAILED, **times)])
    assert failed.failures == {1: expected}


def test_an_index_above_the_size_is_forgotten():
    failed = BackOff(NOW_S).with_failures([pod(5, PodPhase.FAILED), pod(-1, PodPhase.FAILED)])
    assert failed.status_fields(2) == {}


@pytest.mark.parametrize(
    ("ahead_s", "expected_s"),
    [
        pytest.param(30, 10, id="a little ahead of ours"),
        pytest.param(61, 0, id="further ahead than clocks are"),
    ],
)
def test_a_time_that_is_still_to_come_makes_no_longer_pause(ahead_s, expected_s):
    before = {"quickFailures": {"1": 4}, "lastFailures": {"1": int(NOW_S) + ahead_s}}
    assert BackOff.read(before, NOW_S).left_s(1) == expected_s


KILLED = pod(1, PodPhase.FAILED, exit_code=137)


@pytest.mark.parametrize("index", ["x", "-1", "²", "12345678"])
def test_what_is_no_index_counts_for_nothing(index):
    assert BackOff.read({"quickFailures": {index: 4}, "lastFailures": {index: 7}}, NOW_S) == BackOff(NOW_S)


@pytest.mark.parametrize("count", [0, -1, 65, True, "4", 4.0, None])
def test_what_is_no_count_counts_for_nothing(count):
    assert BackOff.read({"quickFailures": {"1": count}}, NOW_S) == BackOff(NOW_S)


def fails(raw, times, of=looked, one=KILLED, others=()):
    """The job after so many pods of one index have failed at once, one after another, and the last look."""
    outcome = None
    for number in range(times):
        outcome = of(raw, *others, replace(one, uid=f"pod-{number}"))
        raw = with_status(raw, outcome)
    return raw, outcome


def created(outcome):
    return [each.body["metadata"]["name"] for each in outcome.writes if isinstance(each, Create)]


EXIT_CODE = job(worker=role(2, restart="ExitCode"))


def test_the_first_failures_are_made_good_at_once():
    for times in range(1, RETRIES_AT_ONCE + 1):
        raw, outcome = fails(EXIT_CODE, times, others=[pod(0)])
        assert (outcome.requeue_s, [each.reason for each in outcome.events if each.warning]) == (None, [])
        assert created(looked(raw, pod(0))) == ["bert-worker-1"]


def test_a_pod_that_fails_again_goes_at_once_and_comes_after_the_pause():
    raw, outcome = fails(EXIT_CODE, 5, others=[pod(0)])
    assert (len(outcome.writes), outcome.status_first, outcome.requeue_s) == (1, True, 20)
    (event,) = [each for each in outcome.events if each.reason is Reason.BACK_OFF]
    assert (event.text, event.warning) == ("Worker 1 failed several times in a row: recreated in 20 s", True)
    outcome_in_pause = looked(raw, pod(0), now_s=NOW_S + 19)
    assert (created(outcome_in_pause), outcome_in_pause.requeue_s, list(outcome_in_pause.events)) == ([], 1, [])
    assert created(looked(raw, pod(0), now_s=NOW_S + 20)) == ["bert-worker-1"]


def test_the_other_indices_of_a_role_are_not_held_up():
    raw, _ = fails(EXIT_CODE, 5, others=[pod(0)])
    assert created(looked(raw, now_s=NOW_S + 1)) == ["bert-worker-0"]


def test_many_that_fail_together_are_one_event():
    raw, outcome = job(worker=role(20, restart="ExitCode")), None
    for number in range(4):
        failed = [pod(index, PodPhase.FAILED, exit_code=137) for index in range(20)]
        dead = [replace(each, uid=f"{each.index}-{number}") for each in failed]
        outcome = looked(raw, *dead)
        raw = with_status(raw, outcome)
    (text,) = [each.text for each in outcome.events if each.reason is Reason.BACK_OFF]
    assert text == "Worker 0, 1, 2, 3, 4, 5, 6, 7 and 12 others failed several times in a row: recreated in 10 s"


def test_a_deadline_that_is_nearer_is_looked_at_first():
    raw, _ = fails(job(worker=role(2, restart="ExitCode"), run={"activeDeadlineSeconds": 5}), 5)
    assert looked(raw, pod(0), now_s=NOW_S + 1).requeue_s == 4


def test_an_elastic_jobs_rank_waits_under_a_high_restart_count():
    raw = elasticjobs.job(elasticjobs.worker(2, restartCount=100))
    other_pods = [elasticjobs.lead(), elasticjobs.pod(0)]
    raw, _ = fails(raw, 4, elasticjobs.looked, elasticjobs.pod(1, phase=PodPhase.FAILED), other_pods)
    assert elasticjobs.names(elasticjobs.looked(raw, *other_pods, now_s=NOW_S + 9)) == []
    assert elasticjobs.names(elasticjobs.looked(raw, *other_pods, now_s=NOW_S + 10)) == ["bert-edljob-worker-2"]


def test_a_suspended_jobs_master_waits_too():
    raw = elasticjobs.job(lead=elasticjobs.master(restartCount=100), suspend=True)
    raw, outcome = fails(raw, 4, elasticjobs.looked, elasticjobs.lead(phase=PodPhase.FAILED, exit_code=137))
    assert (outcome.requeue_s, outcome.status_first) == (10, True)
    assert elasticjobs.names(elasticjobs.looked(raw, now_s=NOW_S + 9)) == []
    assert len(elasticjobs.names(elasticjobs.looked(raw, now_s=NOW_S + 10))) == 1


def test_a_status_that_was_taken_away_makes_a_pod_at_once():
    raw, _ = fails(EXIT_CODE, 9, others=[pod(0)])
    del raw["status"]["replicaStatuses"]["Worker"]["lastFailures"]
    assert created(looked(raw, pod(0))) == ["bert-worker-1"]


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4)
COUNTS = JSON | st.dictionaries(st.text("012²-", max_size=9), JSON, max_size=3)


@settings(max_examples=scaled(200), deadline=None)
@given(COUNTS, COUNTS)
def test_whatever_a_status_says_no_pause_is_longer_than_five_minutes(failures, times):
    back_off = BackOff.read({"quickFailures": failures, "lastFailures": times}, NOW_S).with_failures(
        [pod(1, PodPhase.FAILED)]
    )
    assert all(0 <= back_off.left_s(index) <= 300 for index in range(3))
    status_fields = back_off.status_fields(3)
    assert BackOff.read(status_fields, NOW_S).status_fields(3) == status_fields

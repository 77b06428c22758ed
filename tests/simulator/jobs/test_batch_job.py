"""The Job controller of a local cluster, by hand-moved clocks. Beside a real one: tests/conformance/test_jobs.py."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.simulator.jobs.world import NOW_S, Hand
from tests.simulator.jobs.world import batch_job as job
from turnout.simulator.cluster.controllers import batch_job
from turnout.simulator.cluster.controllers.batch_job import format_indexes, index_of, parse_indexes


def hand(raw_job):
    return Hand(lambda at: batch_job.reconcile_job(at.job, list(at.pods.values()), at.now_s), raw_job).settle()


def indexes(at):
    return sorted(index_of(pod) for pod in at.pods.values() if pod["status"]["phase"] in ("Pending", "Running"))


def conditions(at):
    return [each["type"] for each in at.job["status"].get("conditions", ()) if each["status"] == "True"]


def resized(at, size):
    at.job = {**at.job, "spec": {**at.job["spec"], "completions": size, "parallelism": size}}
    return at.settle()


def test_every_index_gets_a_pod_that_knows_it():
    at = hand(job())
    assert indexes(at) == [0, 1, 2]
    pod = at.pods[at.names()[1]]
    assert pod["metadata"]["labels"]["app"] == "a"
    assert pod["spec"]["hostname"] == "j-1"
    assert [each["name"] for each in pod["spec"]["containers"][0]["env"]] == ["JOB_COMPLETION_INDEX"]
    assert at.job["status"]["active"] == 3


def test_no_more_run_at_once_than_it_says():
    at = hand(job(completions=5, parallelism=2))
    assert indexes(at) == [0, 1]
    at.end("j-0")
    assert indexes(at.settle()) == [1, 2]
    assert at.job["status"]["completedIndexes"] == "0"


def test_it_grows_by_new_indexes_and_shrinks_from_the_highest():
    at = hand(job())
    assert indexes(resized(at, 5)) == [0, 1, 2, 3, 4]
    assert indexes(resized(at, 2)) == [0, 1]


def test_it_is_complete_when_every_index_has_succeeded():
    at = hand(job())
    at.end("j-0", "j-1", "j-2")
    at.settle()
    assert conditions(at) == ["SuccessCriteriaMet", "Complete"]
    assert at.job["status"]["completedIndexes"] == "0-2"
    assert at.job["status"]["succeeded"] == 3


def test_a_failed_index_is_tried_again_after_a_pause_that_doubles():
    at = hand(job())
    at.end("j-1", phase="Failed", code=1)
    assert indexes(at.settle()) == [0, 2]
    assert at.once().requeue_at_s == NOW_S + 10
    at.now_s += 10
    assert indexes(at.settle()) == [0, 1, 2]
    assert at.job["status"]["failed"] == 1


def test_the_pause_keeps_its_bound_after_any_number_of_failures():
    at = hand(job(backoffLimit=100_000, status={"failed": 5000}))
    at.end("j-1", phase="Failed", code=1)
    at.settle()
    assert at.once().requeue_at_s == NOW_S + 600


def test_too_many_failures_end_it_and_all_that_runs():
    at = hand(job(backoffLimit=0))
    at.end("j-1", phase="Failed", code=1)
    at.settle()
    assert indexes(at) == []
    assert conditions(at) == ["FailureTarget", "Failed"]
    assert at.job["status"]["conditions"][-1]["reason"] == "BackoffLimitExceeded"


def test_it_waits_for_pods_that_leave_before_it_says_that_it_has_failed():
    at = hand(job(backoffLimit=0))
    at.end("j-1", phase="Failed", code=1)
    leaving = at.names()[0]
    pod = at.pods[leaving]
    at.pods[leaving] = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}}
    at.settle()
    assert conditions(at) == ["FailureTarget"]
    del at.pods[leaving]
    assert conditions(at.settle()) == ["FailureTarget", "Failed"]


def test_a_deadline_ends_it():
    at = hand(job(activeDeadlineSeconds=60))
    assert at.once().requeue_at_s == NOW_S + 60
    at.now_s += 61
    at.settle()
    assert at.job["status"]["conditions"][-1]["reason"] == "DeadlineExceeded"


def test_a_suspended_job_has_no_pods_and_starts_when_it_is_resumed():
    at = hand(job(suspend=True))
    assert (indexes(at), conditions(at)) == ([], ["Suspended"])
    at.job["spec"]["suspend"] = False
    assert (indexes(at.settle()), conditions(at)) == ([0, 1, 2], [])


def test_it_goes_when_its_time_after_the_end_is_over():
    at = hand(job(completions=1, parallelism=1, ttlSecondsAfterFinished=30))
    at.end("j-0")
    assert at.settle().once().requeue_at_s == NOW_S + 30
    at.now_s += 30
    at.once()
    assert at.job is None


def test_one_without_indexes_counts_heads():
    at = hand(job(completionMode="NonIndexed", completions=2, parallelism=2))
    assert at.names() == ["j-1", "j-2"]
    at.end("j-1", "j-2")
    assert conditions(at.settle()) == ["SuccessCriteriaMet", "Complete"]


@pytest.mark.parametrize(("text", "found"), [("", []), ("0", [0]), ("0,1", [0, 1]), ("0,2-4,9", [0, 2, 3, 4, 9])])
def test_indexes_are_told_in_runs(text, found):
    assert sorted(parse_indexes(text)) == found
    assert format_indexes(found) == text


@pytest.mark.parametrize("text", ["", "x", "-1", "\N{SUPERSCRIPT TWO}"])
def test_an_index_that_is_no_number_is_none(text):
    assert index_of({"metadata": {"annotations": {batch_job.INDEX: text}}}) == -1


@given(st.frozensets(st.integers(0, 60)))
def test_telling_indexes_loses_none(indexes):
    assert parse_indexes(format_indexes(indexes)) == indexes


@given(st.data())
def test_after_any_resize_every_index_below_the_size_is_done_or_there_once(data):
    at = hand(job(backoffLimit=99))
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            resized(at, data.draw(st.integers(1, 6)))
        elif running := [n for n, p in at.pods.items() if p["status"]["phase"] == "Pending"]:
            at.end(data.draw(st.sampled_from(running)), phase=data.draw(st.sampled_from(["Succeeded", "Failed"])))
        at.now_s += 1000
        at.settle()
        if at.job["status"].get("completionTime"):
            return
        size = at.job["spec"]["completions"]
        done = parse_indexes(at.job["status"].get("completedIndexes", ""))
        assert sorted([*indexes(at), *(index for index in done if index < size)]) == list(range(size))

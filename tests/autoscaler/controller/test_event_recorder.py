"""A decision is told to the log once, to the job by an Event, and to the pods that leave."""

import pytest

from tests.autoscaler.test_cache import GPU, job, node, pod
from turnout.autoscaler.cache import Cache
from turnout.autoscaler.controller.event_recorder import DecisionEvents, Refs
from turnout.autoscaler.controller.metrics import Metrics
from turnout.autoscaler.model import Reason, Step
from turnout.jobs.kinds.registry import KINDS
from turnout.jobs.model import JobKey

KEY, GONE = JobKey("Job", "ns", "j-u"), JobKey("Job", "ns", "gone")


class Recorder:
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def emit(self, ref, type_, reason, message, wall_s):
        self.told.append((ref.kind, ref.name, type_, reason, message))


@pytest.fixture
def recorder_and_events():
    view = Cache(KINDS)
    view.put_node(node("a"))
    view.put_job("Job", job(2))
    for index in range(2):
        view.put_pod(pod(index, "a"))
    view.observation(0.0)
    refs, recorder = Refs(view), Recorder()
    return recorder, DecisionEvents(recorder, refs.job, refs.leaving, Metrics((GPU,)))


def test_a_shrink_is_told_on_the_job_and_on_each_pod_that_leaves(recorder_and_events):
    recorder, events = recorder_and_events
    events.report_outcome(Step(KEY, 1, 2, Reason.MAKES_ROOM, "1 worker leaves for Job/ns/b"), "Written")
    sentence = "2 to 1 workers: 1 worker leaves for Job/ns/b"
    assert recorder.told == [
        ("Job", "j-u", "Normal", "MakesRoom", sentence),
        ("Pod", "j-1", "Normal", "MakesRoom", f"leaves: {sentence}"),
    ]


@pytest.mark.parametrize("word", ["DryRun", "Refused", "Conflict", "NotLeading"])
def test_what_did_not_happen_is_no_event_and_stands_in_the_log_once(recorder_and_events, word, caplog):
    recorder, events = recorder_and_events
    with caplog.at_level("INFO"):
        for _ in range(3):
            events.report_outcome(Step(KEY, 3, 2, Reason.IDLE_ROOM), word)
    assert recorder.told == []
    assert [record.msg for record in caplog.records] == ["not_resized"]


@pytest.mark.parametrize(
    ("reason", "type_"),
    [
        (Reason.NEEDS_MORE, "Normal"),
        (Reason.OVER_QUOTA, "Warning"),
        (Reason.REFUSED, "Warning"),
        (Reason.COOLDOWN, None),
    ],
)
def test_a_job_is_told_why_it_waits_and_not_of_each_pause(recorder_and_events, reason, type_):
    recorder, events = recorder_and_events
    events.report_decision(Step(KEY, 2, 2, reason, "why"))
    assert recorder.told == ([("Job", "j-u", type_, reason.value, "stays at 2 workers: why")] if type_ else [])


def test_a_job_that_is_gone_is_told_nothing(recorder_and_events):
    recorder, events = recorder_and_events
    events.report_outcome(Step(GONE, 1, 2, Reason.MAKES_ROOM), "Written")
    assert recorder.told == []

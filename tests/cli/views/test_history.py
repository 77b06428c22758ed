"""`turnout history`: what Events, annotations and a decision log tell of one job."""

import pytest

from tests.autoscaler.world import NOW_S
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.reporting.decision_log import UsageLine, encode_decisions, encode_usage
from turnout.cli.views.history import in_order, listing, rows_of_annotations, rows_of_events, rows_of_log
from turnout.cli.views.listing import text
from turnout.jobs.model import JobKey
from turnout.kube import labels
from turnout.kube.reasons import AUTOSCALER
from turnout.kube.times import rfc3339

BERT = JobKey("Job", "ns", "a")
OTHER = Step(JobKey("Job", "ns", "b"), 1, 1, Reason.AT_MAX)


def event(reason="MakesRoom", about="Job/bert", source="turnout-autoscaler", last="2026-01-01T00:00:02Z", **more):
    kind, name = about.split("/")
    fields = {"reason": reason, "message": "8 to 5 workers", "involvedObject": {"kind": kind, "name": name}}
    return {**fields, "lastTimestamp": last, "source": {"component": source}, "metadata": {}, **more}


@pytest.mark.parametrize(
    ("raw_event", "is_listed"),
    [
        pytest.param(event(), True, id="our Event on the job"),
        pytest.param(event(source="volcano"), True, id="another's Event on the job"),
        pytest.param(event(about="Pod/bert-w-0"), True, id="our Event on a pod of it"),
        pytest.param(event(about="Pod/bert-w-0", source="kubelet"), False, id="the kubelet's on a pod of it"),
        pytest.param(event(about="Pod/other-w-0"), False, id="ours on another's pod"),
        pytest.param(event(about="Job/other"), False, id="on another job"),
        pytest.param(event(about="PyTorchJob/bert"), False, id="on a job of another kind"),
    ],
)
def test_events_on_a_job_and_ours_on_its_pods_are_told(raw_event, is_listed):
    assert bool(rows_of_events([raw_event], frozenset(["bert-w-0"]), "Job", "bert")) is is_listed


def test_an_event_tells_when_by_whom_how_often():
    (row,) = rows_of_events([event(count=3, firstTimestamp="2026-01-01T00:00:01Z")], frozenset(), "Job", "bert")
    assert (row.at, row.since, row.times) == ("2026-01-01T00:00:02Z", "2026-01-01T00:00:01Z", 3)
    assert (row.source, row.reason, row.text) == ("turnout-autoscaler", "MakesRoom", "8 to 5 workers")


def test_annotations_tell_the_last_change_and_what_holds():
    notes = {
        labels.WROTE_WORKERS: "5",
        labels.SUBMITTED_WORKERS: "2",
        labels.RESIZED_AT: "2026-01-01T00:00:05Z",
        labels.GAINED: "-49.1",
        labels.PAUSED: "grow",
        labels.SUSPENDED: "false",
    }
    resized, paused = rows_of_annotations({"metadata": {"name": "bert", "annotations": notes}}, "Job")
    assert resized.at == "2026-01-01T00:00:05Z"
    assert resized.text == "to 5 workers, submitted with 2; lending had won it -49.1 s"
    assert (paused.at, paused.reason, paused.text) == ("", "Paused", f"{labels.PAUSED}=grow: its size is left alone")


def test_a_log_tells_each_changed_decision_once_and_counts_bad_lines():
    grows, full = Step(BERT, 4, 1, Reason.IDLE_ROOM, "3 workers more"), Step(BERT, 4, 4, Reason.AT_MAX)
    log = [
        *encode_decisions([grows], NOW_S).splitlines(),
        b"cut off",
        b"",
        *encode_decisions([OTHER, full], NOW_S + 9).splitlines(),
    ]
    rows, unread = rows_of_log(
        [*log, *encode_decisions([full], NOW_S + 60).splitlines()], BERT
    )  # told again by a new leader
    assert unread == 1
    assert [(row.at, row.reason) for row in rows] == [(rfc3339(NOW_S), "IdleRoom"), (rfc3339(NOW_S + 9), "AtMax")]
    assert rows[0].text == f"4 workers (3 workers more). {AUTOSCALER['IdleRoom'].means}"
    assert rows[1].text == f"4 workers. {AUTOSCALER['AtMax'].means}"
    assert rows_of_log(log, JobKey("Job", "ns", "gone")) == ([], 1)


def test_lines_about_usage_are_no_decisions_and_no_faults():
    usage = encode_usage([UsageLine(rfc3339(NOW_S), 900.0, "q")]).splitlines()
    rows, unread = rows_of_log([*usage, *encode_decisions([OTHER], NOW_S).splitlines()], OTHER.key)
    assert ([row.reason for row in rows], unread) == (["AtMax"], 0)


def test_what_holds_now_comes_after_all_that_has_a_time():
    notes = {"metadata": {"name": "bert", "annotations": {labels.PAUSED: "true"}}}
    late, early = event("AtMax"), event("IdleRoom", last="2026-01-01T00:00:00Z")
    table = in_order([*rows_of_annotations(notes, "Job"), *rows_of_events([late, early], frozenset(), "Job", "bert")])
    assert [row.reason for row in table] == ["IdleRoom", "AtMax", "Paused"]
    assert text(listing(table), "table").split("\n")[3].startswith("now ")


def test_what_tenants_wrote_moves_no_cursor():
    table = rows_of_events([event(message="\x1b[2J\nsecond")], frozenset(), "Job", "bert")
    assert all(line.isprintable() for line in text(listing(table), "table").split("\n"))


def test_a_job_of_which_nothing_is_told_says_so():
    assert text(listing([]), "table").startswith("nothing was told of it")

"""Requests to probes and their answers, as values: bounds, sizes, and the worst of several processes."""

import msgspec
import pytest

from turnout.launcher.coordinator_messages import Probe
from turnout.launcher.errors import BadCheck, BadFrame
from turnout.launcher.health.model import MAX_STAGE_S, Measured, ProbePolicy, ProbeStage
from turnout.launcher.health.probe_messages import (
    MAX_BYTES,
    ON_CPU,
    ON_DEVICE,
    ProbePlan,
    ProbeSizes,
    Report,
    combine_reports,
    encode,
    group_measurement,
    read_plan,
    read_report,
)

REPORT = Report(ProbeStage.DONE, 0.5, 0.25, 4_096, 1e9, 0.125, 10, 20, 0.5, 0.25)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        pytest.param(read_plan, ProbePlan(1, 2, 2, "::1", 29_400, "cuda:0"), id="a plan"),
        pytest.param(read_report, REPORT, id="a report"),
        pytest.param(read_report, Report(), id="the first report"),
    ],
)
def test_what_is_said_is_what_is_heard(read, message):
    assert read(encode(message)) == message


@pytest.mark.parametrize(
    ("read", "data"),
    [
        pytest.param(read_report, b"{", id="half of one"),
        pytest.param(read_report, b'{"stage": "gone"}', id="a stage that is none"),
        pytest.param(read_report, b'{"compute_s": -1}', id="a time below zero"),
        pytest.param(read_report, b'{"compute_s": NaN}', id="a time that is none"),
        pytest.param(read_report, b" " * (MAX_BYTES + 1), id="too long"),
        pytest.param(read_report, b"[" * 10_000, id="too deep"),
        pytest.param(
            read_plan, b'{"rank": 2, "processes": 2, "members": 2, "address": "", "port": 0}', id="no such rank"
        ),
    ],
)
def test_what_cannot_be_is_refused(read, data):
    with pytest.raises(BadFrame):
        read(data)


@pytest.mark.parametrize(
    ("changes", "reports"),
    [
        pytest.param({}, REPORT, id="alike"),
        pytest.param({"compute_s": 0.7}, msgspec.structs.replace(REPORT, compute_s=0.7), id="the slower product"),
        pytest.param(
            {"bandwidth_bytes_s": 1.0}, msgspec.structs.replace(REPORT, bandwidth_bytes_s=1.0), id="the slower link"
        ),
        pytest.param({"device_used": 0.9}, msgspec.structs.replace(REPORT, device_used=0.9), id="the fuller device"),
        pytest.param(
            {"stage": ProbeStage.COLLECTIVE, "collective_s": None, "fault": "gone"},
            msgspec.structs.replace(REPORT, stage=ProbeStage.COLLECTIVE, collective_s=None, fault="gone"),
            id="of a failure nothing is hidden by the others",
        ),
    ],
)
def test_a_member_is_as_good_as_the_worst_of_its_processes(changes, reports):
    assert combine_reports([REPORT, msgspec.structs.replace(REPORT, **changes)]) == reports


def test_a_group_is_as_fast_as_its_slowest_member():
    reports = [REPORT, msgspec.structs.replace(REPORT, collective_s=0.75)]
    assert group_measurement(("n0", "n1"), reports) == Measured(("n0", "n1"), (0.5, 0.5), 0.75)


@pytest.mark.parametrize(
    "times", [pytest.param([None, None], id="nobody's"), pytest.param([0.25, None], id="or only some of them")]
)
def test_a_group_of_which_one_has_no_time_has_failed(times):
    reports = [msgspec.structs.replace(REPORT, collective_s=time_s) for time_s in times]
    assert group_measurement(("n0", "n1"), reports) == Measured(("n0", "n1"), (0.5, 0.5), None)


def test_a_member_has_a_time_only_if_each_of_its_processes_has_one():
    failed = msgspec.structs.replace(REPORT, compute_s=None)
    assert (combine_reports([REPORT, failed]).compute_s, combine_reports([REPORT, REPORT]).compute_s) == (None, 0.5)


def test_of_two_that_ended_at_one_stage_the_one_with_a_fault_is_told():
    well, broken = Report(ProbeStage.COMPUTE), Report(ProbeStage.COMPUTE, fault="no kernel for this device")
    assert combine_reports([well, broken]).fault == combine_reports([broken, well]).fault == broken.fault


def test_links_of_a_switchbox_are_told_by_whoever_has_measured_them():
    boxes = (((0, 1), 20_000.0),)
    report = combine_reports([REPORT, msgspec.structs.replace(REPORT, boxes=boxes)])
    assert report == msgspec.structs.replace(REPORT, boxes=boxes)


@pytest.mark.parametrize("empty", [{}, {"bandwidth_bytes_s": None}, {"device_used": None}], ids=str)
def test_what_no_process_has_measured_is_not_known_of_its_member(empty):
    report = msgspec.structs.replace(REPORT, **empty)
    assert combine_reports([report, report]) == report


def test_as_much_may_be_said_as_is_read():
    content = encode(REPORT)
    assert read_report(content.ljust(MAX_BYTES)) == REPORT
    with pytest.raises(BadFrame, match=f"{MAX_BYTES} at most"):
        read_report(content.ljust(MAX_BYTES + 1))


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"meet_s": 0.0}, id="no time to meet"),
        pytest.param({"stage_s": 0.0}, id="no time for a stage"),
        pytest.param({"meet_s": MAX_STAGE_S + 1}, id="more than a day to meet"),
        pytest.param({"stage_s": MAX_STAGE_S + 1}, id="more than a day for a stage"),
        pytest.param({"matmul": 0}, id="a product of nothing"),
        pytest.param({"reduce_bytes": 0}, id="an all-reduce of nothing"),
    ],
)
def test_what_no_probe_could_obey_is_refused(changes):
    with pytest.raises(BadCheck):
        ProbePolicy(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"meet_s": 0.5}, id="half a second to meet"),
        pytest.param({"stage_s": 0.5}, id="half a second for a stage"),
        pytest.param({"meet_s": MAX_STAGE_S, "stage_s": MAX_STAGE_S}, id="a day for each"),
        pytest.param({"matmul": 1, "reduce_bytes": 1}, id="the least there is to measure"),
    ],
)
def test_what_a_probe_can_obey_is_taken(changes):
    assert ProbePolicy(**changes).round_s > 0


def test_a_round_lasts_as_long_as_its_stages_may_and_a_moment_each():
    """Two of the nine wait for others."""
    assert ProbePolicy(meet_s=100.0, stage_s=10.0).round_s == 2 * 100 + 7 * 10 + 9 * 2


PLAN = ProbePlan(3, 4, 2, "::1", 29_400, meet_s=100.0, stage_s=10.0)


@pytest.mark.parametrize(
    ("rank", "processes", "members"),
    [
        pytest.param(4, 4, 2, id="a rank that is not there"),
        pytest.param(5, 4, 2, id="nor this one"),
        pytest.param(0, 5, 2, id="members with different numbers of processes"),
        pytest.param(5, 5, 2, id="both"),
    ],
)
def test_a_group_that_cannot_be_is_refused(rank, processes, members):
    with pytest.raises(ValueError, match=f"rank {rank} of {processes} processes of {members} members"):
        ProbePlan(rank, processes, members, "::1", 29_400)
    with pytest.raises(ValueError, match=f"rank {rank} of {processes} processes of {members} members"):
        Probe(1, rank, processes, members, "::1", 29_400)


def test_the_last_rank_of_a_group_is_one():
    assert (PLAN.rank, PLAN.processes_per_member) == (3, 2)
    assert Probe(1, 3, 4, 2, "::1", 29_400).members == 2


@pytest.mark.parametrize(
    ("setting", "usual", "measures"),
    [
        pytest.param({}, ON_CPU, ON_CPU, id="what suits the device"),
        pytest.param(
            {"matmul": 7}, ON_DEVICE, msgspec.structs.replace(ON_DEVICE, matmul=7), id="one size is asked for"
        ),
        pytest.param(
            {"reduce_bytes": 9, "matmul": 7},
            ON_DEVICE,
            msgspec.structs.replace(ON_DEVICE, matmul=7, reduce_bytes=9),
            id="or two",
        ),
        pytest.param({"sizes": ProbeSizes(matmul=5)}, ON_DEVICE, ProbeSizes(matmul=5), id="all sizes are asked for"),
        pytest.param(
            {"sizes": ProbeSizes(matmul=5), "matmul": 7},
            ON_CPU,
            ProbeSizes(matmul=7),
            id="and one of them in particular",
        ),
    ],
)
def test_how_much_is_measured(setting, usual, measures):
    assert msgspec.structs.replace(PLAN, **setting).measures(usual) == measures


def test_a_stage_that_waits_for_others_may_take_as_long_as_they_may():
    assert [stage.value for stage in ProbeStage if PLAN.within_s(stage) == 100.0] == ["begun", "meeting"]
    assert {PLAN.within_s(stage) for stage in ProbeStage} == {100.0, 10.0}

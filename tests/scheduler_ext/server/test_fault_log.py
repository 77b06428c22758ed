"""A fault of our own code with one object: it is logged by its place, at a bounded rate, and the work goes on."""

import logging

from tests.kit.clock import ManualClock
from turnout.scheduler_ext.server.fault_log import LOG_INTERVAL_S, FaultLog


def test_a_fault_gives_the_default_and_is_logged_without_its_text(caplog):
    faults = FaultLog(ManualClock().monotonic)

    def decide():
        raise ValueError("a text of a tenant")

    with caplog.at_level(logging.WARNING):
        assert faults.call("gang_not_decided", decide, (), gang="team/g") == ()
    (record,) = caplog.records
    assert (record.getMessage(), record.gang, record.kind) == ("gang_not_decided", "team/g", "ValueError")
    assert record.where.startswith("test_fault_log.py:")
    assert "tenant" not in str(record.__dict__)


def test_what_is_decided_is_returned(caplog):
    assert FaultLog(ManualClock().monotonic).call("gang_not_decided", lambda: ("write",), ()) == ("write",)
    assert not caplog.records


def test_one_place_is_logged_once_in_a_while(caplog):
    clock = ManualClock()
    faults = FaultLog(clock.monotonic)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            faults.call("gang_not_decided", lambda: 1 // 0, None)
            clock.now_s += LOG_INTERVAL_S / 2
    assert len(caplog.records) == 2

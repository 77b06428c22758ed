"""The order in which notices become Events: each namespace has its turn, however many another one has to tell."""

import pytest

from tests.kit.clock import ManualClock, settle
from tests.kube.world import running
from turnout.scheduler_ext.model import EventReason, Notice
from turnout.scheduler_ext.server.events import BURST, MAX_NAMESPACES, MAX_NOTICES_PER_NAMESPACE, DecisionEvents

pytestmark = pytest.mark.asyncio


class Recorder:
    """Remembers what it is told."""

    def __init__(self):
        self.told = []

    def emit(self, ref, type_, reason, message, now):
        self.told.append((ref.namespace, ref.name, type_, reason, message))


def notice(namespace, number=0, word=EventReason.NO_ROOM):
    return Notice(word, namespace, f"pod-{number}", f"uid-{namespace}-{number}", "8 pods must start together")


def events():
    clock, recorder = ManualClock(), Recorder()
    return clock, recorder, DecisionEvents(recorder, "turnout-system/map", clock)


async def test_a_notice_is_an_event_of_its_pod_and_one_without_a_pod_of_the_map():
    _, recorder, write_events = events()
    write_events.notify(notice("ml"))
    write_events.notify(Notice(EventReason.MAP_APPLIED, detail="8 hosts"))
    async with running(write_events.run()):
        await settle()
    assert recorder.told == [
        ("ml", "pod-0", "Warning", "NoRoom", "NoRoom: 8 pods must start together"),
        ("turnout-system", "map", "Normal", "MapApplied", "MapApplied: 8 hosts"),
    ]


async def test_who_has_one_thing_to_tell_does_not_wait_for_who_has_many():
    _, recorder, write_events = events()
    for number in range(1_000):
        write_events.notify(notice("flood", number))
    write_events.notify(notice("honest"))
    async with running(write_events.run()):
        await settle()
    assert [where for where, *_ in recorder.told][:3] == ["flood", "honest", "flood"]
    assert write_events.dropped == 1_000 - MAX_NOTICES_PER_NAMESPACE


async def test_what_was_said_again_while_it_waited_is_counted():
    _, recorder, write_events = events()
    for _ in range(3):
        write_events.notify(notice("ml"))
    async with running(write_events.run()):
        await settle()
    assert len(recorder.told) == 3
    assert len(set(recorder.told)) == 1


async def test_no_more_leave_at_once_than_are_written_at_once():
    clock, recorder, write_events = events()
    for number in range(MAX_NOTICES_PER_NAMESPACE):
        write_events.notify(notice("ml", number))
    async with running(write_events.run()):
        await settle()
        assert BURST <= len(recorder.told) <= BURST + 1
        before = len(recorder.told)
        await clock.advance(1.0)
        assert before < len(recorder.told) < MAX_NOTICES_PER_NAMESPACE


async def test_more_namespaces_than_are_remembered_cost_nothing():
    _, _, write_events = events()
    for number in range(MAX_NAMESPACES + 7):
        write_events.notify(notice(f"ns-{number}"))
    assert write_events.dropped == 7

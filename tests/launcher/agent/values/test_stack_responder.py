"""A member's report of one process stays within its bound, and keeps the stack rather than the calls."""

import asyncio
import random
from types import SimpleNamespace

import pytest

from turnout.launcher.agent.stack_responder import StackResponder
from turnout.launcher.health.flight_recorder.model import Call, Group, Record
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
from turnout.launcher.health.hang_monitor.stack_merge import unpack
from turnout.launcher.health.messages import ShowStacks, Stacks
from turnout.launcher.health.stack_traces.parse import read, record_of, write

DICE = random.Random(3)
STACK = f'Current thread 0x02 (most recent call first):\n  File "train.py", line 7 in step{DICE.getrandbits(4_000)}\n'
RECORD = Record(0, 2, True, (Group("0", "", "nccl", "0-1", (Call(5, str(DICE.getrandbits(200)), 30.0),)),))
WHOLE = write("faulthandler", STACK, "S", "", RECORD)


def sent(file, most_bytes):
    """The frames that answer one order."""

    async def show():
        return {0: CapturedStack(file, True)}

    async def answered():
        frames, there = [], asyncio.Event()
        showing = StackResponder(SimpleNamespace(show=show), lambda frame: (frames.append(frame), there.set()))
        showing.begin(ShowStacks(7, 1, most_bytes))
        await asyncio.wait_for(there.wait(), 10)
        await showing.close()
        return frames

    return asyncio.run(answered())


def test_what_fits_is_sent_whole():
    (frame,) = sent(WHOLE, 4_096)
    assert unpack(frame.packed) == WHOLE


def test_where_all_of_it_does_not_fit_the_stack_is_sent_without_the_calls():
    (whole,) = sent(WHOLE, 4_096)
    (frame,) = sent(WHOLE, len(whole.packed) - 1)
    assert record_of(unpack(frame.packed)) is None
    assert read(unpack(frame.packed)) == read(WHOLE)


@pytest.mark.parametrize("file", [WHOLE, write("faulthandler", STACK, "S")])
def test_a_stack_that_does_not_fit_stays_here_and_that_is_told(file):
    (frame,) = sent(file, 100)
    assert frame == Stacks(7, 0, b"", frame.why)
    assert "100 may be sent: they are in its own folder" in frame.why

"""A member's report of one process stays within its bound."""

import asyncio
import random
from types import SimpleNamespace

from turnout.launcher.agent.agent import StackResponder
from turnout.launcher.coordinator_messages import ShowStacks, Stacks
from turnout.launcher.health.hang_monitor.stack_capture import CapturedStack
from turnout.launcher.health.stack_traces.parse import write
from turnout.launcher.rendezvous.transport.merge_stacks import unpack

DICE = random.Random(3)
STACK = f'Current thread 0x02 (most recent call first):\n  File "train.py", line 7 in step{DICE.getrandbits(4_000)}\n'
WHOLE = write("faulthandler", STACK, "S")


def sent(file, max_bytes):
    """The frames that answer one order."""

    async def capture_stacks():
        return {0: CapturedStack(file, True)}

    async def answered():
        frames, has_answers = [], asyncio.Event()
        showing = StackResponder(
            SimpleNamespace(capture_stacks=capture_stacks), lambda frame: (frames.append(frame), has_answers.set())
        )
        showing.begin(ShowStacks(7, 1, max_bytes))
        await asyncio.wait_for(has_answers.wait(), 10)
        await showing.close()
        return frames

    return asyncio.run(answered())


def test_what_fits_is_sent_whole():
    (frame,) = sent(WHOLE, 4_096)
    assert unpack(frame.packed) == WHOLE


def test_a_stack_that_does_not_fit_stays_here_and_that_is_told():
    (answer,) = sent(WHOLE, 4_096)
    max_bytes = len(answer.packed)
    assert sent(WHOLE, max_bytes) == [answer]
    (frame,) = sent(WHOLE, max_bytes - 1)
    assert frame == Stacks(7, 0, b"", frame.why)
    assert f"{max_bytes - 1} may be sent: they are in its own folder" in frame.why

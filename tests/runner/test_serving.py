"""A listener of a test leaves no connection behind, whenever it ends."""

import asyncio
import gc
import socket
import warnings

import pytest

from tests.support.serving import Listener


def left_behind(turns):
    """Warnings of connections left, when a listener ends so many turns of the loop after callers have come."""

    async def story():
        async def serve(reader, writer):
            await reader.read()

        listener = Listener(serve)
        port = await listener.open()
        callers = [socket.create_connection(("127.0.0.1", port)) for _ in range(3)]
        for _ in range(turns):
            await asyncio.sleep(0)
        await listener.close()
        for caller in callers:
            caller.close()

    gc.collect()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(story())
        gc.collect()
    return [str(each.message) for each in told]


@pytest.mark.parametrize("turns", range(8))
def test_whoever_is_being_accepted_as_it_ends_is_cut_off(turns):
    assert left_behind(turns) == []


def test_what_was_raised_for_a_caller_is_raised_at_its_end():
    async def serve(reader, writer):
        raise AssertionError("not what was asked for")

    async def story():
        listener = Listener(serve)
        port = await listener.open()
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()
        await writer.wait_closed()
        await listener.close()

    with pytest.raises(AssertionError, match="not what was asked for"):
        asyncio.run(story())

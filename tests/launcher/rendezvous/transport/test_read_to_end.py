"""What a peer has sent before it left is read, whatever becomes of the answers to it."""

import asyncio
import socket

import pytest

from turnout.launcher.framing import frame
from turnout.launcher.rendezvous.transport.frame_connection import ReadToEndProtocol, next_frame

BODIES = [b"first", b"second" * 30_000, b"last"]


async def read_all(answer_first, unread):
    """Serve a peer that has sent BODIES and left, and return what was read.

    answer_first: write an answer before anything is read. unread: the peer leaves without reading an earlier answer.
    """
    peer, sock = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    bodies, ended = [], asyncio.Event()

    async def serve(reader, writer):
        if answer_first:
            writer.write(frame(b"answer"))
        try:
            while True:
                bodies.append(await next_frame(reader, 1 << 20))
                if not writer.is_closing():
                    writer.write(frame(b"answer"))
        except asyncio.IncompleteReadError:
            ended.set()
        writer.close()

    if unread:
        sock.send(b"x")
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    peer.sendall(b"".join(map(frame, BODIES)))
    peer.close()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: ReadToEndProtocol(serve), sock)
    async with asyncio.timeout(30):
        await ended.wait()
    return bodies


@pytest.mark.parametrize("answer_first", [
    pytest.param(True, id="an answer that fails before anything is read"),
    pytest.param(False, id="answers that fail while it is read"),
])  # fmt: skip
@pytest.mark.parametrize("unread", [
    pytest.param(True, id="after an answer that it did not read"),
    pytest.param(False, id="after no answer"),
])  # fmt: skip
def test_all_that_a_peer_sent_before_it_left_is_read(answer_first, unread):
    assert asyncio.run(read_all(answer_first, unread)) == BODIES

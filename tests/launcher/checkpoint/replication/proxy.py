"""A wire between two daemons, on which bytes are others when they arrive, or which is cut."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from tests.kit.listener import Listener


class Wire:
    """To this port. flip: the byte of what is sent there, over all connections, that is changed; cut: from there on
    nothing comes. forge: other bytes, by their place. sent: bytes so far.

    answers: count, and change, what comes back instead.
    """

    def __init__(self, port, *, answers=False):
        self._port, self._answers = port, answers
        self._listener = Listener(self._join)
        self.flip = self.cut = None
        self.forge = {}
        self.sent = 0

    async def open(self):
        return await self._listener.open()

    async def _join(self, reader, writer):
        their_reader, back = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            with suppress(OSError):
                await asyncio.gather(
                    self._carry(reader, back, counted=not self._answers),
                    self._carry(their_reader, writer, counted=self._answers),
                )
        finally:
            back.close()

    async def _carry(self, reader, writer, *, counted=False):
        while data := bytearray(await reader.read(1 << 16)):
            if counted:
                start, self.sent = self.sent, self.sent + len(data)
                if self.flip is not None and start <= self.flip < self.sent:
                    data[self.flip - start] ^= 0x10
                for at in self.forge.keys() & range(start, self.sent):
                    data[at - start] = self.forge[at]
                if self.cut is not None and self.sent > self.cut:
                    break
            writer.write(data)
            await writer.drain()
        writer.close()

    async def close(self):
        await self._listener.close()

"""At the coordinator's worker: the stacks of all ranks become one tree, in files and in a line of the log.

How they are folded, and who stands apart, is in launcher/health/stacks. Thousands of ranks take a moment: a thread's.
"""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

from turnout.launcher.errors import BadStacks
from turnout.launcher.health.calls.model import Record
from turnout.launcher.health.hangs import Hangs
from turnout.launcher.health.stacks.hanging import Merge, Merged
from turnout.launcher.health.stacks.model import MOST_RANKS, Gathered, Showing, set_of
from turnout.launcher.health.stacks.reading import MOST_BYTES, read, record_of, state_of
from turnout.launcher.health.stacks.telling import files, merge, verdict
from turnout.launcher.shell.say import Say
from turnout.launcher.shell.watching.files import folder_of, keep, write

MOST_TOLD = 64  # ranks that the log and the metrics name
MOST_LINES = 8  # of the verdict that the log tells; the files have all
_STOPPED, _HELD = "Tt", "D"  # states of a process: one that cannot run is whom the others wait for


def pack(file: bytes) -> bytes:
    """The file of one rank, as it is sent: a tenth of it."""
    return zlib.compress(file, 6)


def unpack(packed: bytes) -> bytes:
    """Raises BadStacks on what is no such file, or a larger one than is read."""
    unpacker = zlib.decompressobj()
    try:
        file = unpacker.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise BadStacks(f"it is not what an agent packs: {error}") from error
    if not unpacker.eof:
        raise BadStacks(f"it is cut, or has more than {MOST_BYTES} bytes")
    return file


class Merging:
    """Of one coordinator."""

    def __init__(self, hangs: Hangs, say: Say) -> None:
        self._folder, self._say = folder_of(hangs), say

    async def merge(self, order: Merge) -> Merged:
        """Fold and write what has come. What cannot be written is told, and acted upon as well."""
        found, said, fault = await asyncio.to_thread(_merge, self._folder, order)
        told = {"folder": str(self._folder), "world": order.world, "shown": order.world - len(order.why)}
        self._say("stacks_gathered", {**told, "apart": list(found[:MOST_TOLD]), "verdict": said})
        if fault:
            self._say("stacks_lost", {"folder": str(self._folder), "why": fault})
        return Merged(order.number, found, "; ".join(said) or "no stack has come")


def _merge(folder: Path, order: Merge) -> tuple[tuple[int, ...], list[str], str]:
    """Who stands apart, the verdict, and why nothing could be written."""
    if order.world > MOST_RANKS:
        return (), [f"a world of {order.world} ranks: of at most {MOST_RANKS} stacks are merged"], ""
    showings, why, raw, stands = dict[int, Showing](), dict(order.why), dict[int, bytes](), list[int]()
    records = dict[int, Record]()
    for rank, packed in order.stacks.items():
        try:
            raw[rank] = unpack(packed)
            if (record := record_of(raw[rank])) is not None:
                records[rank] = record
            stands += [rank] if (state := state_of(raw[rank])) in _STOPPED else []
            showings[rank] = read(raw[rank])
        except BadStacks as error:
            why[rank] = str(error)
            stands += [rank] if rank in raw and state == _HELD else []
    result = merge(Gathered(order.world, showings, why, records))
    apart = set_of(stands) if showings else 0
    if result.standing.apart or not apart:
        apart |= result.apart
    said = verdict(result)[:MOST_LINES]
    found = tuple(rank for rank in range(order.world) if apart >> rank & 1)
    try:
        keep(folder, raw, order.world)
        write(folder, files(result))
    except OSError as error:
        return found, said, str(error)
    return found, said, ""

"""Merges the stack traces of all ranks at the coordinator's worker, and writes them to files and to the log.

How they are merged, and which ranks are suspect, is known in launcher/health/stack_traces. It runs in a thread, since
thousands of ranks take a moment.
"""

from __future__ import annotations

import asyncio
import zlib

from turnout.launcher.errors import BadStacks
from turnout.launcher.event_log import EventLog
from turnout.launcher.health.hang_detector import HangPolicy
from turnout.launcher.health.hang_monitor.stack_files import StackFolder
from turnout.launcher.health.rank_sets import MOST_RANKS, set_of
from turnout.launcher.health.stack_traces.hang_state import Merge, Merged
from turnout.launcher.health.stack_traces.model import Gathered, Showing
from turnout.launcher.health.stack_traces.parse import MOST_BYTES, read, state_of
from turnout.launcher.health.stack_traces.report import files, merge, verdict

MOST_TOLD = 64  # suspect ranks in the log and the metrics
MOST_LINES = 8  # lines of the verdict in the log; the files have all
_STOPPED, _HELD = "Tt", "D"  # process states: a process that cannot run is the one the others wait for


def pack(file: bytes) -> bytes:
    """Compress the file of one rank for sending, to about a tenth."""
    return zlib.compress(file, 6)


def unpack(packed: bytes) -> bytes:
    """Decompress a file. Raises BadStacks if it is invalid or too large."""
    unpacker = zlib.decompressobj()
    try:
        file = unpacker.decompress(packed, MOST_BYTES)
    except zlib.error as error:
        raise BadStacks(f"it is not what an agent packs: {error}") from error
    if not unpacker.eof:
        raise BadStacks(f"it is cut, or has more than {MOST_BYTES} bytes")
    return file


class StackMerge:
    """Merges stack traces for one coordinator."""

    def __init__(self, hangs: HangPolicy, say: EventLog) -> None:
        self._folder, self._say = StackFolder(hangs.folder), say

    async def merge(self, order: Merge) -> Merged:
        """Merge and write the traces that have come. A write error is reported, and the result is still returned."""
        found, said, fault = await asyncio.to_thread(_merge, self._folder, order)
        told = {"folder": str(self._folder.path), "world": order.world, "shown": order.world - len(order.why)}
        self._say("stacks_gathered", {**told, "apart": list(found[:MOST_TOLD]), "verdict": said})
        if fault:
            self._say("stacks_lost", {"folder": str(self._folder.path), "why": fault})
        return Merged(order.number, found, "; ".join(said) or "no stack has come")


def _merge(folder: StackFolder, order: Merge) -> tuple[tuple[int, ...], list[str], str]:
    """Return the suspect ranks, the verdict's lines, and the error of writing, "" for none."""
    if order.world > MOST_RANKS:
        return (), [f"a world of {order.world} ranks: of at most {MOST_RANKS} stacks are merged"], ""
    showings, why, raw, stands = dict[int, Showing](), dict(order.why), dict[int, bytes](), list[int]()
    for rank, packed in order.stacks.items():
        try:
            raw[rank] = unpack(packed)
            stands += [rank] if (state := state_of(raw[rank])) in _STOPPED else []
            showings[rank] = read(raw[rank])
        except BadStacks as error:
            why[rank] = str(error)
            stands += [rank] if rank in raw and state == _HELD else []
    result = merge(Gathered(order.world, showings, why))
    apart = (set_of(stands) if showings else 0) | result.apart
    said = verdict(result)[:MOST_LINES]
    found = tuple(rank for rank in range(order.world) if apart >> rank & 1)
    try:
        folder.keep(raw, order.world)
        folder.write(files(result))
    except OSError as error:
        return found, said, str(error)
    return found, said, ""

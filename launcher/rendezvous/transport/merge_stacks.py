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
from turnout.launcher.health.hang_monitor.stack_capture import StackFolder
from turnout.launcher.health.stack_traces.parse import MOST_BYTES, read, state_of
from turnout.launcher.health.stack_traces.report import files, merge, verdict
from turnout.launcher.health.stack_traces.stack_tree import MOST_RANKS, RankStacks, WorldStacks, set_of
from turnout.launcher.rendezvous.state import MergeStacks, StacksMerged

MAX_LOGGED_RANKS = 64  # suspect ranks in the log and the metrics

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

    def __init__(self, hangs: HangPolicy, log_event: EventLog) -> None:
        self._folder, self._log_event = StackFolder(hangs.folder), log_event

    async def merge(self, order: MergeStacks) -> StacksMerged:
        """Merge and write the traces that have come. A write error is reported, and the result is still returned."""
        found, verdict_lines, fault = await asyncio.to_thread(_merge, self._folder, order)
        fields = {"folder": str(self._folder.path), "world": order.world, "shown": order.world - len(order.why)}
        self._log_event(
            "stacks_gathered", {**fields, "apart": list(found[:MAX_LOGGED_RANKS]), "verdict": verdict_lines}
        )
        if fault:
            self._log_event("stacks_lost", {"folder": str(self._folder.path), "why": fault})
        return StacksMerged(order.number, found, "; ".join(verdict_lines) or "no stack has come")


def _merge(folder: StackFolder, order: MergeStacks) -> tuple[tuple[int, ...], list[str], str]:
    """Return the suspect ranks, the verdict's lines, and the error of writing, "" for none."""
    if order.world > MOST_RANKS:
        return (), [f"a world of {order.world} ranks: of at most {MOST_RANKS} stacks are merged"], ""
    stacks, why, raw, stopped_ranks = dict[int, RankStacks](), dict(order.why), dict[int, bytes](), list[int]()
    for rank, packed in order.stacks.items():
        try:
            raw[rank] = unpack(packed)
            stopped_ranks += [rank] if (state := state_of(raw[rank])) in _STOPPED else []
            stacks[rank] = read(raw[rank])
        except BadStacks as error:
            why[rank] = str(error)
            stopped_ranks += [rank] if rank in raw and state == _HELD else []
    result = merge(WorldStacks(order.world, stacks, why))
    suspects = (set_of(stopped_ranks) if stacks else 0) | result.suspects
    verdict_lines = verdict(result)[:MOST_LINES]
    found = tuple(rank for rank in range(order.world) if suspects >> rank & 1)
    try:
        folder.keep(raw, order.world)
        folder.write(files(result))
    except OSError as error:
        return found, verdict_lines, str(error)
    return found, verdict_lines, ""

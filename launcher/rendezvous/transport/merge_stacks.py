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
from turnout.launcher.health.stack_traces.parse import MAX_BYTES, read, state_of
from turnout.launcher.health.stack_traces.report import files, merge, verdict
from turnout.launcher.health.stack_traces.stack_tree import MAX_RANKS, RankStacks, WorldStacks, set_of
from turnout.launcher.rendezvous.state import MergeStacks, StacksMerged

MAX_LOGGED_RANKS = 64  # suspect ranks in the log and the metrics

MAX_LINES = 8  # lines of the verdict in the log; the files have all

# Letters of process states: stopped, and blocked in the kernel. The other ranks wait for a process that cannot run.
_STOPPED, _BLOCKED = "Tt", "D"


def pack(file: bytes) -> bytes:
    """Compress the file of one rank for sending, to about a tenth."""
    return zlib.compress(file, 6)


def unpack(packed: bytes) -> bytes:
    """Decompress the file of one rank. Raises BadStacks if it is invalid or decompresses to more than MAX_BYTES."""
    unpacker = zlib.decompressobj()
    try:
        file = unpacker.decompress(packed, MAX_BYTES)
    except zlib.error as error:
        raise BadStacks(f"it is not what an agent packs: {error}") from error
    if not unpacker.eof:
        raise BadStacks(f"it is cut, or has more than {MAX_BYTES} bytes")
    return file


class StackMerge:
    """Merges stack traces for one coordinator."""

    def __init__(self, hangs: HangPolicy, log_event: EventLog) -> None:
        self._folder, self._log_event = StackFolder(hangs.folder), log_event

    async def merge(self, order: MergeStacks) -> StacksMerged:
        """Merge the stacks of an order in a thread, write the report into the folder of stacks, and log the verdict.

        Returns the suspect ranks and the verdict. An error of writing is only logged.
        """
        suspect_ranks, verdict_lines, fault = await asyncio.to_thread(_merge, self._folder, order)
        fields = {"folder": str(self._folder.path), "world": order.world, "shown": order.world - len(order.why)}
        self._log_event(
            "stacks_gathered", {**fields, "apart": list(suspect_ranks[:MAX_LOGGED_RANKS]), "verdict": verdict_lines}
        )
        if fault:
            self._log_event("stacks_lost", {"folder": str(self._folder.path), "why": fault})
        return StacksMerged(order.number, suspect_ranks, "; ".join(verdict_lines) or "no stack has come")


def _merge(folder: StackFolder, order: MergeStacks) -> tuple[tuple[int, ...], list[str], str]:
    """Merge the stacks and write them to the folder. Return the suspect ranks, the verdict's lines, and the error of
    writing, "" for none.
    """
    if order.world > MAX_RANKS:
        return (), [f"a world of {order.world} ranks: of at most {MAX_RANKS} stacks are merged"], ""
    stacks, why, raw, stopped_ranks = dict[int, RankStacks](), dict(order.why), dict[int, bytes](), list[int]()
    for rank, packed in order.stacks.items():
        try:
            raw[rank] = unpack(packed)
            stopped_ranks += [rank] if (state := state_of(raw[rank])) in _STOPPED else []
            stacks[rank] = read(raw[rank])
        except BadStacks as error:
            why[rank] = str(error)
            stopped_ranks += [rank] if rank in raw and state == _BLOCKED else []
    result = merge(WorldStacks(order.world, stacks, why))
    suspects = (set_of(stopped_ranks) if stacks else 0) | result.suspects
    verdict_lines = verdict(result)[:MAX_LINES]
    suspect_ranks = tuple(rank for rank in range(order.world) if suspects >> rank & 1)
    try:
        folder.replace_all(raw, order.world)
        folder.write(files(result))
    except OSError as error:
        return suspect_ranks, verdict_lines, str(error)
    return suspect_ranks, verdict_lines, ""

"""Which map is in use: the last good one, and what to say of each new text.

A text with faults, or a deleted ConfigMap, changes nothing. A change that moves many hosts is told, and held when the
admin asked for that. Contract: CS-06, CS-07; docs/design.md 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from turnout.scheduler_ext.model import Notice, Word
from turnout.topology import keys, parse
from turnout.topology.errors import BadFabric
from turnout.topology.fabric import EMPTY, Fabric, build, moved_share
from turnout.topology.model import Fault

CONFIRM = "turnout.dev/confirmed-map"  # annotation: the digest of a large change that the admin wants
LARGE_SHARE = 0.3  # of the mapped hosts
FAULTS_TOLD = 5  # in one Event; the metric has the number of all


@dataclass(frozen=True, slots=True)
class Drawn:
    """What became of a text: a fabric, or faults. digest: names the text, for confirming it."""

    fabric: Fabric | None
    faults: tuple[Fault, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """fabric: to use from now on, None to go on with the old one. faults: of the newest text."""

    fabric: Fabric | None
    notice: Notice
    faults: int = 0


def draw(data: Mapping[str, str]) -> Drawn:
    """Read a ConfigMap's data and build its fabric: the slow part, safe to run in a thread."""
    texts = sorted((key, data[key]) for key in (keys.TEXT_KEY, keys.YAML_KEY) if key in data)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:12]
    reading = parse.read(data)
    if reading.faults:
        return Drawn(None, reading.faults, digest)
    try:
        return Drawn(build(reading.entries), (), digest)
    except BadFabric as error:
        return Drawn(None, error.faults, digest)


def judge(old: Fabric | None, drawn: Drawn, confirmed: str, hold_large: bool) -> Verdict:
    """Decide on a new text. old: the map in use, None before the first. confirmed: the digest the admin named."""
    if drawn.fabric is None:
        told = "; ".join(f"line {f.line}: {f.text}" if f.line else f.text for f in drawn.faults[:FAULTS_TOLD])
        more = len(drawn.faults) - FAULTS_TOLD
        detail = f"{told}{f'; and {more} more' if more > 0 else ''}; the last good map stays"
        return Verdict(None, Notice(Word.MAP_REJECTED, detail=detail[:500]), len(drawn.faults))
    hosts, switches = int(drawn.fabric.mapped_count), len(drawn.fabric.names[1]) if drawn.fabric.hosts else 0
    size = f"{hosts} hosts under {switches} leaf switches"
    moved = moved_share(old, drawn.fabric) if old is not None else 0.0
    if moved <= LARGE_SHARE:
        return Verdict(drawn.fabric, Notice(Word.MAP_APPLIED, detail=size))
    large = f"{moved:.0%} of the mapped hosts move; {size}"
    if hold_large and confirmed != drawn.digest:
        how = f"to apply it, annotate the ConfigMap with {CONFIRM}={drawn.digest}"
        return Verdict(None, Notice(Word.MAP_HELD, detail=f"{large}; {how}"))
    return Verdict(drawn.fabric, Notice(Word.MAP_CHANGED_MUCH, detail=large))


def missing() -> Verdict:
    """The ConfigMap is not there: the last good map stays, which at the start is the empty one."""
    return Verdict(None, Notice(Word.MAP_MISSING, detail="the topology ConfigMap is gone; the last good map stays"))


__all__ = ["CONFIRM", "EMPTY", "Drawn", "Verdict", "draw", "judge", "missing"]

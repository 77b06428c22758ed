"""Decide whether a new text of the topology ConfigMap comes into use; until one does, the last good map stays.

A text with faults, or a deleted ConfigMap, changes nothing. A change that moves many hosts is reported, and held back
if the admin asked for that. Contract: CS-06, CS-07; docs/design.md 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.topology.configmap_keys import CONFIRM, TEXT_KEY, YAML_KEY
from turnout.topology.errors import BadFabric
from turnout.topology.fabric import Fabric, build, moved_share
from turnout.topology.model import Fault
from turnout.topology.sources import parse

LARGE_SHARE = 0.3  # of the mapped hosts
FAULTS_TOLD = 5  # in one Event; the metric has the number of all


class MapOutcome(Enum):
    """The result of a look at the ConfigMap. Log, metric, Event and test use the same word."""

    APPLIED = "MapApplied"
    REJECTED = "MapRejected"  # faults in the ConfigMap; the last good map stays
    MISSING = "MapMissing"  # the ConfigMap is gone; the last good map stays
    CHANGED_MUCH = "MapChangedMuch"  # applied, but more hosts moved than is usual
    HELD = "MapHeld"  # not applied until somebody confirms it


@dataclass(frozen=True, slots=True)
class Drawn:
    """The fabric of a text, or its faults."""

    fabric: Fabric | None
    faults: tuple[Fault, ...]
    digest: str  # names the text, so that an admin can confirm it


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision on a new text."""

    fabric: Fabric | None  # to use from now on; None: go on with the old one
    outcome: MapOutcome
    detail: str  # at most 500 characters
    faults: int = 0  # how many the newest text has


def draw(data: Mapping[str, str]) -> Drawn:
    """Read a ConfigMap's data and build its fabric. This is the slow part; it is safe to run in a thread."""
    texts = sorted((key, data[key]) for key in (TEXT_KEY, YAML_KEY) if key in data)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:12]
    reading = parse.read(data)
    if reading.faults:
        return Drawn(None, reading.faults, digest)
    try:
        return Drawn(build(reading.entries), (), digest)
    except BadFabric as error:
        return Drawn(None, error.faults, digest)


def judge(old: Fabric | None, drawn: Drawn, confirmed: str, hold_large: bool) -> Verdict:
    """Decide on a new text.

    old: the map in use, None before the first. confirmed: the digest that the admin named.
    """
    if drawn.fabric is None:
        told = "; ".join(f"line {f.line}: {f.text}" if f.line else f.text for f in drawn.faults[:FAULTS_TOLD])
        more = len(drawn.faults) - FAULTS_TOLD
        detail = f"{told}{f'; and {more} more' if more > 0 else ''}; the last good map stays"
        return Verdict(None, MapOutcome.REJECTED, detail[:500], len(drawn.faults))
    hosts, switches = int(drawn.fabric.mapped_count), len(drawn.fabric.names[1]) if drawn.fabric.hosts else 0
    size = f"{hosts} hosts under {switches} leaf switches"
    moved = moved_share(old, drawn.fabric) if old is not None else 0.0
    if moved <= LARGE_SHARE:
        return Verdict(drawn.fabric, MapOutcome.APPLIED, size)
    large = f"{moved:.0%} of the mapped hosts move; {size}"
    if hold_large and confirmed != drawn.digest:
        how = f"to apply it, annotate the ConfigMap with {CONFIRM}={drawn.digest}"
        return Verdict(None, MapOutcome.HELD, f"{large}; {how}")
    return Verdict(drawn.fabric, MapOutcome.CHANGED_MUCH, large)


class MapInUse:
    """The map that a program uses now."""

    def __init__(self, hold_large: bool = False) -> None:
        self._hold_large = hold_large
        self._fabric: Fabric | None = None
        self._judged: tuple[str, str] | None = None

    def take(self, drawn: Drawn | None, annotations: Mapping[str, str]) -> Verdict | None:
        """Decide on the ConfigMap as it is now, None when there is no ConfigMap.

        Returns None where neither its text nor its confirmation has changed: existing plans stay good.
        """
        if drawn is None:
            self._judged = None
            return Verdict(None, MapOutcome.MISSING, "the topology ConfigMap is gone; the last good map stays")
        confirmed = annotations.get(CONFIRM, "")
        if (drawn.digest, confirmed) == self._judged:
            return None  # a label changed, or the list came again
        self._judged = drawn.digest, confirmed
        verdict = judge(self._fabric, drawn, confirmed, self._hold_large)
        self._fabric = verdict.fabric or self._fabric
        return verdict

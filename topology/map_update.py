"""Decide whether a new text of the topology ConfigMap comes into use; until one does, the last good map stays.

The key of the ConfigMap decides which format is read. A text with faults, or a deleted ConfigMap, changes nothing. A
change that moves many hosts is reported, and held back if the admin asked for that. Contract: CS-06, CS-07;
docs/design.md 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.topology.fabric import Fabric, build, moved_share
from turnout.topology.map_yaml import read_map
from turnout.topology.model import BadFabric, Fault
from turnout.topology.names import CONFIRM, TEXT_KEY, YAML_KEY

LARGE_SHARE = 0.3  # of the mapped hosts
MAX_FAULTS_SHOWN = 5  # in one Event; the metric has the number of all


class MapOutcome(Enum):
    """The result of a look at the ConfigMap. Log, metric, Event and test use the same word."""

    APPLIED = "MapApplied"
    REJECTED = "MapRejected"  # faults in the ConfigMap; the last good map stays
    MISSING = "MapMissing"  # the ConfigMap is gone; the last good map stays
    CHANGED_MUCH = "MapChangedMuch"  # applied, but more hosts moved than is usual
    HELD = "MapHeld"  # not applied until somebody confirms it


@dataclass(frozen=True, slots=True)
class MapDraft:
    """The fabric of a text, or its faults."""

    fabric: Fabric | None  # None if the text has faults
    faults: tuple[Fault, ...]
    digest: str  # names the text, so that an admin can confirm it


@dataclass(frozen=True, slots=True)
class MapDecision:
    """The decision on a new text."""

    fabric: Fabric | None  # to use from now on; None: go on with the old one
    outcome: MapOutcome
    detail: str  # at most 500 characters
    faults: int = 0  # how many the newest text has


def draft_map(data: Mapping[str, str]) -> MapDraft:
    """Read a ConfigMap's data and build its fabric. This is the slow part; it is safe to run in a thread."""
    texts = sorted((key, data[key]) for key in (TEXT_KEY, YAML_KEY) if key in data)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:12]
    reading = read_map(data)
    if reading.faults:
        return MapDraft(None, reading.faults, digest)
    try:
        return MapDraft(build(reading.entries), (), digest)
    except BadFabric as error:
        return MapDraft(None, error.faults, digest)


def decide(old: Fabric | None, drawn: MapDraft, confirmed: str, hold_large: bool) -> MapDecision:
    """Decide on a new text.

    old: the map in use, None before the first. confirmed: the digest that the admin named.
    """
    if drawn.fabric is None:
        fault_text = "; ".join(
            f"line {f.line}: {f.text}" if f.line else f.text for f in drawn.faults[:MAX_FAULTS_SHOWN]
        )
        more = len(drawn.faults) - MAX_FAULTS_SHOWN
        detail = f"{fault_text}{f'; and {more} more' if more > 0 else ''}; the last good map stays"
        return MapDecision(None, MapOutcome.REJECTED, detail[:500], len(drawn.faults))
    hosts, switches = int(drawn.fabric.mapped_count), len(drawn.fabric.names[1]) if drawn.fabric.hosts else 0
    size = f"{hosts} hosts under {switches} leaf switches"
    moved = moved_share(old, drawn.fabric) if old is not None else 0.0
    if moved <= LARGE_SHARE:
        return MapDecision(drawn.fabric, MapOutcome.APPLIED, size)
    large = f"{moved:.0%} of the mapped hosts move; {size}"
    if hold_large and confirmed != drawn.digest:
        how = f"to apply it, annotate the ConfigMap with {CONFIRM}={drawn.digest}"
        return MapDecision(None, MapOutcome.HELD, f"{large}; {how}")
    return MapDecision(drawn.fabric, MapOutcome.CHANGED_MUCH, large)


class MapInUse:
    """The map that a program uses now."""

    def __init__(self, hold_large: bool = False) -> None:
        self._hold_large = hold_large
        self._fabric: Fabric | None = None
        self._last_input: tuple[str, str] | None = None

    def take(self, drawn: MapDraft | None, annotations: Mapping[str, str]) -> MapDecision | None:
        """Decide on the ConfigMap as it is now, None when there is no ConfigMap.

        Returns None where neither its text nor its confirmation has changed: existing plans stay good.
        """
        if drawn is None:
            self._last_input = None
            return MapDecision(None, MapOutcome.MISSING, "the topology ConfigMap is gone; the last good map stays")
        confirmed = annotations.get(CONFIRM, "")
        if (drawn.digest, confirmed) == self._last_input:
            return None  # a label changed, or the list came again
        self._last_input = drawn.digest, confirmed
        verdict = decide(self._fabric, drawn, confirmed, self._hold_large)
        self._fabric = verdict.fabric or self._fabric
        return verdict

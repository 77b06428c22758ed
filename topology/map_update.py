"""Decide whether a new text of the topology ConfigMap is applied; the last good map stays in use until a text is.

The key of the ConfigMap decides which format is read. A text with faults, or a deleted ConfigMap, changes nothing. A
change that moves many hosts is reported, and waits for confirmation if the admin asked for that. Contract: CS-06,
CS-07; docs/design.md 3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from turnout.topology.fabric import Fabric, build, moved_share
from turnout.topology.map_formats import read_map
from turnout.topology.model import BadFabric, MapFault
from turnout.topology.names import CONFIRMED_MAP_ANNOTATION, TEXT_KEY, YAML_KEY

LARGE_SHARE = 0.3  # a change that moves a larger share of the mapped hosts is large
MAX_FAULTS_SHOWN = 5  # in one Event; the metric has the number of all faults


class MapOutcome(Enum):
    """The outcome of a change of the ConfigMap. Log, metric, Event and test use the same word."""

    APPLIED = "MapApplied"  # the new map is in use
    REJECTED = "MapRejected"  # faults in the ConfigMap; the last good map stays
    MISSING = "MapMissing"  # the ConfigMap was deleted; the last good map stays
    CHANGED_MUCH = "MapChangedMuch"  # the new map is in use, and a large share of the hosts moved
    HELD = "MapHeld"  # the new map is not in use until an admin confirms it


@dataclass(frozen=True, slots=True)
class MapDraft:
    """The fabric that a ConfigMap describes, or the faults of its text."""

    fabric: Fabric | None  # None if the text has faults
    faults: tuple[MapFault, ...]  # () if the text has none
    digest: str  # 12 hexadecimal digits of the text, by which an admin confirms it


@dataclass(frozen=True, slots=True)
class MapDecision:
    """The decision on a new text."""

    fabric: Fabric | None  # the fabric to use from now on; None: the old one stays in use
    outcome: MapOutcome
    detail: str  # a sentence for a person, at most 500 characters
    faults: int = 0  # the number of faults of the new text


def draft_map(data: Mapping[str, str]) -> MapDraft:
    """Read a ConfigMap's data and build its fabric. This takes long for a large map, and may run in a thread.

    data: texts by key; TEXT_KEY has the plain text and YAML_KEY the YAML. Raises nothing: mistakes are faults of the
    result.
    """
    texts = sorted((key, data[key]) for key in (TEXT_KEY, YAML_KEY) if key in data)
    digest = hashlib.sha256(repr(texts).encode()).hexdigest()[:12]
    reading = read_map(data)
    if reading.faults:
        return MapDraft(None, reading.faults, digest)
    try:
        return MapDraft(build(reading.entries), (), digest)
    except BadFabric as error:
        return MapDraft(None, error.faults, digest)


def decide_on_map(old: Fabric | None, draft: MapDraft, confirmed: str, hold_large: bool) -> MapDecision:
    """Decide whether a new text of the map is applied.

    old: the fabric in use; None before the first, which is never held. draft: of the new text. confirmed: the digest
    that the admin confirmed, "" for none. hold_large: True if a change that moves more than LARGE_SHARE of the hosts
    waits for its confirmation; if False, it is applied at once. A text with faults is rejected: the old fabric stays in
    use, and the result has no fabric, as for a change that waits.
    """
    if draft.fabric is None:
        fault_text = "; ".join(
            f"line {f.line}: {f.text}" if f.line else f.text for f in draft.faults[:MAX_FAULTS_SHOWN]
        )
        hidden_faults = len(draft.faults) - MAX_FAULTS_SHOWN
        detail = f"{fault_text}{f'; and {hidden_faults} more' if hidden_faults > 0 else ''}; the last good map stays"
        return MapDecision(None, MapOutcome.REJECTED, detail[:500], len(draft.faults))
    hosts, switches = int(draft.fabric.mapped_count), len(draft.fabric.names[1]) if draft.fabric.hosts else 0
    size = f"{hosts} hosts under {switches} leaf switches"
    moved = moved_share(old, draft.fabric) if old is not None else 0.0
    if moved <= LARGE_SHARE:
        return MapDecision(draft.fabric, MapOutcome.APPLIED, size)
    share_text = f"{moved:.0%} of the mapped hosts have other switches or are deleted; {size}"
    if hold_large and confirmed != draft.digest:
        instruction = f"to apply it, annotate the ConfigMap with {CONFIRMED_MAP_ANNOTATION}={draft.digest}"
        return MapDecision(None, MapOutcome.HELD, f"{share_text}; {instruction}")
    return MapDecision(draft.fabric, MapOutcome.CHANGED_MUCH, share_text)


class MapInUse:
    """The map that a program uses now, and the rule by which a new text replaces it."""

    def __init__(self, hold_large: bool = False) -> None:
        """Start without a map: the first one without faults is applied, also if it was held before a restart.

        hold_large: True if a large change waits for its confirmation.
        """
        self._hold_large = hold_large
        self._fabric: Fabric | None = None
        self._last_input: tuple[str, str] | None = None

    def update(self, draft: MapDraft | None, annotations: Mapping[str, str]) -> MapDecision | None:
        """Decide on the ConfigMap as it is now, and use the map of the decision from now on.

        draft: of the ConfigMap as it is now; None if it does not exist: the decision is then always MISSING, and the
        map in use stays. annotations: of the ConfigMap. Return None if neither the text nor the annotation
        CONFIRMED_MAP_ANNOTATION has changed since the last call.
        """
        if draft is None:
            self._last_input = None
            detail = "the topology ConfigMap does not exist; the last good map stays"
            return MapDecision(None, MapOutcome.MISSING, detail)
        confirmed = annotations.get(CONFIRMED_MAP_ANNOTATION, "")
        if (draft.digest, confirmed) == self._last_input:
            return None  # only a label changed, or the watch listed the ConfigMap again
        self._last_input = draft.digest, confirmed
        decision = decide_on_map(self._fabric, draft, confirmed, self._hold_large)
        self._fabric = decision.fabric or self._fabric
        return decision

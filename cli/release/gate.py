"""Says what a job's pods with the scheduling gate wait for: the nominator's last message, and whether a nominator
works.

Whoever may write in the namespace can write Events, so their texts are cut and cleaned.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from turnout.cli.views.cluster_events import read_event
from turnout.kube.labels import PLACEMENT_GATE
from turnout.kube.objects import Lease, Pod
from turnout.scheduler_ext.gates.release import PlacerState, placer_state, silence_s

Object = Mapping[str, Any]
COMPONENT = "turnout-nominator"  # by whom its Events are
_MAX_WORD, _MAX_TEXT = 64, 500
# What the owner of a job can do, by the nominator's word. docs/extender.md has all of them.
NEXT = {
    "GangIncomplete": "create the missing members, or set a smaller min",
    "GangUnknown": "create its PodGroup or owner, or state the min on the pods: turnout.dev/min-workers",
    "NoRoom": "wait: its gate is removed as soon as the whole gang fits; or set a smaller min",
    "Preempting": "wait: pods of a lower priority are leaving for it, and its gate is removed once they are gone",
    "EvictionRefused": "ask the owner of the PodDisruptionBudget to loosen it, or wait: it is tried again",
    "TierTooNarrow": "allow a wider turnout.dev/topology-tier, or set a smaller min",
    "NoMap": "ask an admin for the map of the switches, or drop turnout.dev/topology: required",
}


class NominatorState(Enum):
    """Whether the nominator runs, which places gangs and removes gates."""

    WORKS = "works"
    SILENT = "silent"  # nobody holds the Lease
    ABSENT = "absent"  # there is no Lease of ours in the cluster
    UNKNOWN = "unknown"  # Leases may not be listed


@dataclass(frozen=True, slots=True)
class Gate:
    """The state of pods with the scheduling gate."""

    pods: int  # that have the gate and no node
    placer: NominatorState
    reason: str = ""  # of the nominator's last Event, "" if there is none
    detail: str = ""  # message of that Event
    said_s: float | None = None  # when it was last reported, since 1970; None without one


def behind_gate(pods: Iterable[Pod]) -> list[Pod]:
    """Return the waiting pods that carry our gate."""
    return [pod for pod in pods if not pod.spec.node_name and _has_gate(pod)]


def gate_of(
    gated: Sequence[Pod], events: Iterable[Object], leases: Sequence[Lease] | None, now_s: float
) -> Gate | None:
    """Return the state of the pods with the scheduling gate; None if `gated` is empty.

    events: of their namespace. leases: of nominators, None if they may not be listed. now_s: since 1970.
    """
    if not gated:
        return None
    uids = {pod.metadata.uid for pod in gated}
    reports = [found for event in events if (found := _report_of(event, uids)) is not None]
    placer = _placer(leases, now_s)
    if not reports:
        return Gate(len(gated), placer)
    at_s, reason, detail = max(reports)
    return Gate(len(gated), placer, reason, detail, at_s)


def gate_sentence(gate: Gate) -> str:
    """Return one to three sentences: how many pods have the gate, why they wait, and whether a nominator works."""
    text = f"{gate.pods} pod{'' if gate.pods == 1 else 's'} behind the scheduling gate {PLACEMENT_GATE}"
    if gate.reason:
        text += f": {gate.reason}, {gate.detail}" if gate.detail else f": {gate.reason}"
    else:
        text += ", until turnout-nominator has a place for the whole gang; it has not said yet what it waits for"
    if gate.placer is NominatorState.ABSENT:
        return f"{text}. No nominator is installed in this cluster, so nobody lifts it"
    if gate.placer is NominatorState.SILENT:
        return f"{text}. No nominator holds the Lease, so nobody lifts it now"
    return text


def what_next(gate: Gate) -> str:
    """Return what the owner of the pods can do; "" if waiting is all that is known."""
    if gate.placer is NominatorState.ABSENT:
        return "take the gate out of the pod template; `turnout release` lets these pods go"
    if gate.placer is NominatorState.SILENT:
        return "ask an admin to look at the nominator's pods; `turnout release` lets pods go without a plan"
    return NEXT.get(gate.reason, "")


def with_gate(rows: Sequence[tuple[str, str]], gate: Gate | None) -> list[tuple[str, str]]:
    """Return the rows of `turnout why`, then those about the gate, as a new list. The gate's remedy replaces theirs.

    rows: (label, text). gate: None for no gate; then the rows are unchanged.
    """
    if gate is None:
        return list(rows)
    remedy = what_next(gate)
    found = [(label, text) for label, text in rows if not remedy or label != "next"]
    return [*found, ("gate", gate_sentence(gate)), *([("next", remedy)] if remedy else [])]


def _report_of(raw: Object, uids: set[str]) -> tuple[float, str, str] | None:
    """Return time, reason and message of a nominator's Event on one of the pods.

    None for any other or an invalid Event. uids: of the pods. The message is cut, and unprintable characters become
    "?".
    """
    event = read_event(raw)
    if event.component != COMPONENT or event.uid not in uids:
        return None
    if not (event.reason.isascii() and event.reason.isalnum() and len(event.reason) <= _MAX_WORD):
        return None
    message = "".join(each if each.isprintable() else "?" for each in event.message[:_MAX_TEXT])
    return event.last_s or 0.0, event.reason, message


def _placer(leases: Sequence[Lease] | None, now_s: float) -> NominatorState:
    """Return whether the nominator runs, by the Lease that was renewed last.

    leases: of the nominator, None if they may not be listed. now_s: since 1970.
    """
    if leases is None:
        return NominatorState.UNKNOWN
    if not leases:
        return NominatorState.ABSENT
    latest = min(leases, key=lambda lease: silence_s(lease, now_s))
    is_held = latest.spec.holder_identity and placer_state(latest, float("inf"), now_s) is PlacerState.PLACED
    return NominatorState.WORKS if is_held else NominatorState.SILENT


def _has_gate(pod: Pod) -> bool:
    return any(each.get("name") == PLACEMENT_GATE for each in pod.spec.scheduling_gates or ())

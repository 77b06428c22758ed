"""Reads a Kubernetes Event as untrusted JSON: whoever may write in a namespace can write its fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnout.kube.times import unix_s


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """One Event. Each text is "" if its field is missing."""

    component: str  # that reports it
    kind: str  # of the object that it is about, as are the next three
    api_version: str
    name: str
    uid: str
    reason: str  # one word
    message: str
    first_s: float | None  # since 1970; None if the field is missing or is no time
    last_s: float | None  # since 1970; the Event's creation if it has no time
    count: int  # how often it happened, 1 if it is not stated


def read_event(raw: Mapping[str, Any]) -> ClusterEvent:
    """Return the fields of an Event of v1. A missing or mistyped text is "", a time None, and the count 1.

    Only the types of its objects (metadata and so on) are trusted, because the API server checks them. The last time is
    lastTimestamp, else eventTime, else that of its creation. raw: the Event, decoded from JSON.
    """
    about, metadata = raw.get("involvedObject") or {}, raw.get("metadata") or {}
    component = raw.get("reportingComponent") or (raw.get("source") or {}).get("component")
    last = raw.get("lastTimestamp") or raw.get("eventTime") or metadata.get("creationTimestamp")
    count = raw.get("count")
    return ClusterEvent(
        _text(component),
        _text(about.get("kind")),
        _text(about.get("apiVersion")),
        _text(about.get("name")),
        _text(about.get("uid")),
        _text(raw.get("reason")),
        _text(raw.get("message")),
        _time_s(raw.get("firstTimestamp")),
        _time_s(last),
        count if isinstance(count, int) else 1,
    )


def _text(value: object) -> str:
    return str(value or "")


def _time_s(value: object) -> float | None:
    return unix_s(value) if isinstance(value, str) else None

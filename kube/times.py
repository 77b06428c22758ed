"""Times as Kubernetes writes them, and in seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def rfc3339(wall_s: float) -> str:
    """Return seconds since 1970 as a Kubernetes Time: whole seconds, UTC."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(wall_s: float) -> str:
    """Return seconds since 1970 as a Kubernetes MicroTime: microseconds, UTC."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_s(text: Any) -> float | None:
    """Return a Time or MicroTime in seconds since 1970; None for a value that is no text with a time of ISO 8601.

    text: of any type. A time without a zone counts as local time.
    """
    try:
        return datetime.fromisoformat(text).astimezone(UTC).timestamp() if isinstance(text, str) else None
    except (ValueError, OverflowError):
        return None

"""Times as Kubernetes writes them, and back to seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any


def rfc3339(wall_s: float) -> str:
    """Kubernetes' Time: whole seconds, UTC."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def rfc3339_micro(wall_s: float) -> str:
    """Kubernetes' MicroTime: six digits of a second, UTC."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def since_1970(text: Any) -> float | None:
    """A Time or MicroTime in seconds; None when it is none."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC).timestamp()
    except (ValueError, OverflowError):
        return None

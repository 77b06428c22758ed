"""Confine a fault to its object: it is logged, and all other pods and jobs go on."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

log = logging.getLogger(__name__)


@contextmanager
def left_out(kind: str, obj: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Guard the handling of one object: an exception is logged.

    kind: of the object, for the log.
    """
    try:
        yield
    except Exception as error:
        log.warning("object_skipped", extra={"kind": kind, "about": _name(obj), "why": error_message(error)})


def error_message(error: Exception) -> str:
    """Describe an error and its place in at most 200 characters; its text may come from a stranger."""
    step = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__} at {step.filename.rpartition('/')[2]}:{step.lineno}: {error}"[:200]


def _name(obj: Mapping[str, Any] | None) -> str:
    meta = obj.get("metadata") if obj is not None else None
    return f"{meta.get('namespace', '')}/{meta.get('name', '')}" if isinstance(meta, Mapping) else ""

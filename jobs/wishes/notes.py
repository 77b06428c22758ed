"""Values of annotations, read with a sentence for each that cannot be."""

from __future__ import annotations

import re
from collections.abc import Mapping

from turnout.jobs.wishes.model import Level

_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LEVEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")


def count(notes: Mapping[str, str], key: str, faults: list[str]) -> int | None:
    """Return a whole number from 1 to 999999; None when it is absent or cannot be read."""
    text = notes.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        faults.append(f"{key} is {text[:40]!r}: it must be a whole number from 1 to 999999, as a string")
        return None
    return int(text)


def level(notes: Mapping[str, str], key: str, faults: list[str]) -> Level | None:
    """Return a number of tiers, a label's key or a word for a tier; None when it is absent or cannot be read."""
    text = notes.get(key)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,2}", text):
        return int(text)
    if text[:1].isdigit() or not _LEVEL.fullmatch(text):
        wanted = "a tier (0 a host, 1 a leaf), a node label's key or a word for one"
        faults.append(f"{key} is {text[:40]!r}: it must be {wanted}")
        return None
    return text


def word(notes: Mapping[str, str], key: str, faults: list[str]) -> str:
    """Return a name as Kubernetes' labels allow it; "" when it is absent or cannot be read."""
    text = notes.get(key, "")
    if text and not _WORD.fullmatch(text):
        faults.append(f"{key} is {text[:40]!r}: it must be a name of up to 63 letters, digits, dots and dashes")
        return ""
    return text

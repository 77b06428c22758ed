"""Values of annotations. Each value that cannot be read adds a sentence to a list of faults."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from turnout.jobs.wishes.model import MAX_LAYERS, Layer, Level

_WORD = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LEVEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,251}[A-Za-z0-9])?")


def count(notes: Mapping[str, str], key: str, faults: list[str]) -> int | None:
    """Return an integer from 1 to 999999; None if it is absent or unreadable."""
    text = notes.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        faults.append(f"{key} is {text[:40]!r}: it must be a whole number from 1 to 999999, as a string")
        return None
    return int(text)


def level(notes: Mapping[str, str], key: str, faults: list[str]) -> Level | None:
    """Return a tier number, a label's key or a tier word; None if it is absent or unreadable."""
    text = notes.get(key)
    if text is None:
        return None
    if re.fullmatch(r"[0-9]{1,2}", text):
        return int(text)
    if text[:1].isdigit() or not _LEVEL.fullmatch(text):
        expected = "a tier (0 a host, 1 a leaf), a node label's key or a word for one"
        faults.append(f"{key} is {text[:40]!r}: it must be {expected}")
        return None
    return text


def word(notes: Mapping[str, str], key: str, faults: list[str]) -> str:
    """Return a value that Kubernetes' labels allow; "" if it is absent or unreadable."""
    text = notes.get(key, "")
    if text and not _WORD.fullmatch(text):
        faults.append(f"{key} is {text[:40]!r}: it must be a name of up to 63 letters, digits, dots and dashes")
        return ""
    return text


def set_of(notes: Mapping[str, str], key: str, most: int, faults: list[str]) -> tuple[str, int]:
    """Return the name and the number of a set from "name" or "name/3"; 0 for no number; ("", 0) if unreadable."""
    text, slash, number = notes.get(key, "").partition("/")
    number_is_valid = not slash or (re.fullmatch(r"[1-9][0-9]?", number) is not None and 2 <= int(number) <= most)
    if notes.get(key) and not (_WORD.fullmatch(text) and number_is_valid):
        expected = f"a name of up to 63 letters, digits, dots and dashes, or name/N with N from 2 to {most}"
        faults.append(f"{key} is {notes[key][:40]!r}: it must be {expected}")
        return "", 0
    return text, int(number) if slash else 0


def nested(source: str, layers: Iterable[Layer], unkept: list[str]) -> tuple[Layer, ...]:
    """Return the layers, the largest first. If two sizes do not divide each other, only the larger is used.

    Layers of one pod have no effect. A sentence is added to `unkept` for each layer that is ignored.
    """
    result: list[Layer] = []
    for layer in sorted(layers, key=lambda each: -each.size):
        if layer.size < 2:
            continue
        if len(result) == MAX_LAYERS or (result and result[-1].size % layer.size):
            unkept.append(
                f"{source}: the layer {str(layer.level)[:80]} of {layer.size} is not kept: it divides no other"
            )
            continue
        result.append(layer)
    return tuple(result)

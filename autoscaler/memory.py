"""Leader memory: what the next leader has to know and cannot read reliably from objects that tenants write.

These are the terms on which workers were lent, and who has left room unused. `controller/memory_writer.py` keeps it in
a ConfigMap of the autoscaler's own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from turnout.jobs.model import JobKey, Sizes
from turnout.kube import labels

# How many are written, because a ConfigMap holds 1 MiB. After a change of leader, a job beyond them has the terms of
# its present object, which its owner may have changed since workers were lent. A strike beyond them is forgotten.
MAX_TERMS, MAX_STRIKES = 6_000, 500
_KEPT_ANNOTATIONS = (labels.MIN_WORKERS, labels.MAX_WORKERS, labels.UNIT)
_MAX_TEXT = 14  # characters of a kept annotation
Owner = JobKey | str  # a job, or a namespace


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which workers were lent to a job."""

    minimum: int  # its min, in workers, when nothing was lent, or a lower min since then
    sizes: Sizes  # its allowed sizes when nothing was lent, or since the min became lower
    annotations: Mapping[str, str]  # its last readable annotations
    resizable: bool  # it could be resized when nothing was lent


@dataclass(frozen=True, slots=True)
class Strike:
    """A job or namespace that has left room unused."""

    owner: Owner
    times: int  # how often in a row, >= 1
    age_s: float  # time since the last unused room, >= 0
    left_s: float  # rest of its back-off, >= 0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a leader."""

    terms: Mapping[str, Terms] = field(default_factory=dict)  # by the uid of a job with lent workers
    strikes: tuple[Strike, ...] = ()  # the longest back-off first


def encode(memory: Memory, now_s: float) -> dict[str, str]:
    """Return the data of the ConfigMap of leader memory: the first MAX_TERMS terms and the first MAX_STRIKES strikes.

    The rest is left out. now_s: time of writing, seconds since 1970.
    """
    terms = {uid: _encode_terms(each) for uid, each in _first(memory.terms.items(), MAX_TERMS)}
    strikes = [
        (_owner_name(each.owner), each.times, round(each.age_s), round(each.left_s))
        for each in _first(memory.strikes, MAX_STRIKES)
    ]
    return {
        "terms": msgspec.json.encode(terms).decode(),
        "strikes": msgspec.json.encode(strikes).decode(),
        "at": f"{now_s:.0f}",
    }


def read(data: Mapping[str, str], now_s: float) -> Memory:
    """Return the memory that a leader has written, with times as of `now_s`, seconds since 1970.

    data: of the ConfigMap, {} for none. A part that cannot be read counts as absent. An entry is left out if its min,
    unit or count of strikes is not above 0, or a time is negative; other numbers are not checked. A clock that was set
    back counts as no time.
    """
    terms = _decode_or_none(data.get("terms", "{}"), dict[str, tuple[int, int, bool, bool, tuple[str, str, str]]]) or {}
    strikes = _decode_or_none(data.get("strikes", "[]"), list[tuple[str, int, float, float]]) or []
    since_s = max(0.0, now_s - (_decode_or_none(data.get("at", ""), float) or now_s))
    return Memory(
        {
            uid: Terms(minimum, Sizes(unit, doubles), _decode_annotations(texts), resizable)
            for uid, (minimum, unit, doubles, resizable, texts) in terms.items()
            if minimum > 0 and unit > 0
        },
        tuple(
            Strike(_owner(name), times, age_s + since_s, max(0.0, left_s - since_s))
            for name, times, age_s, left_s in strikes
            if times > 0 and min(age_s, left_s) >= 0
        ),
    )


def trimmed_terms(terms: Terms) -> Terms:
    """Return a copy of terms with only the annotations of _KEPT_ANNOTATIONS, without which some kinds of job cannot be
    read.

    One of more than _MAX_TEXT characters is left out.
    """
    annotations = {
        name: text for name in _KEPT_ANNOTATIONS if (text := terms.annotations.get(name)) and len(text) <= _MAX_TEXT
    }
    return replace(terms, annotations=annotations)


def _encode_terms(terms: Terms) -> tuple[object, ...]:
    """Return terms as they are written: (min, unit, doubles, resizable, texts), a tuple instead of an object to save
    bytes.
    """
    texts = [terms.annotations.get(name, "") for name in _KEPT_ANNOTATIONS]
    return terms.minimum, terms.sizes.unit, terms.sizes.doubles, terms.resizable, texts


def _decode_annotations(texts: Iterable[str]) -> dict[str, str]:
    """Return the kept annotations by name. texts: values in the order of _KEPT_ANNOTATIONS, or ""."""
    return {name: text for name, text in zip(_KEPT_ANNOTATIONS, texts, strict=True) if text}


def _first(items: Iterable[Any], max_items: int) -> Iterable[Any]:
    """Return an iterator over the first `max_items` of the items, or over all if there are fewer."""
    return (each for each, _ in zip(items, range(max_items), strict=False))


def _decode_or_none(text: str, type_: Any) -> Any:
    """Return the value of JSON text; None if the text is no JSON of this type."""
    try:
        return msgspec.json.decode(text, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _owner_name(owner: Owner) -> str:
    """Return KIND/NAMESPACE/NAME of a job, or the name of a namespace. owner: the job or namespace."""
    return owner if isinstance(owner, str) else "/".join((owner.kind, owner.namespace, owner.name))


def _owner(name: str) -> Owner:
    """Return the job or the namespace of a text that `_owner_name` has returned."""
    kind, _, rest = name.partition("/")
    namespace, _, own = rest.partition("/")
    return JobKey(kind, namespace, own) if rest else name

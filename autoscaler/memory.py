"""Leader memory: what the next leader has to know and cannot read reliably from objects that tenants write.

These are the terms on which workers were lent, and who has left room unused. controller/memory_writer.py keeps it in a
ConfigMap of the autoscaler's own namespace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from turnout.jobs.model import JobKey, Sizes
from turnout.kube import labels

MOST_TERMS, MOST_STRIKES = 6_000, 500  # a ConfigMap holds 1 MiB
_BOUNDS = (labels.MIN_WORKERS, labels.MAX_WORKERS, labels.UNIT)
_MOST_TEXT = 14
Owner = JobKey | str  # a job, or a namespace


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms on which workers were lent to a job."""

    least: int  # its min, in workers, when nothing was lent, or a lower one since
    sizes: Sizes  # the same for its sizes
    annotations: Mapping[str, str]  # its last readable annotations
    resizable: bool  # it could be resized


@dataclass(frozen=True, slots=True)
class Strike:
    """A job or namespace that has left room unused."""

    owner: Owner
    times: int  # in a row
    age_s: float  # since the last time
    left_s: float  # of its back-off


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a leader."""

    terms: Mapping[str, Terms] = field(default_factory=dict)  # by the uid of a job with lent workers
    strikes: tuple[Strike, ...] = ()  # those who wait longest first


def encode(memory: Memory, now_s: float) -> dict[str, str]:
    """Return the data of a ConfigMap. now_s: since 1970, by which the next leader knows how long ago this was."""
    terms = {uid: _line(each) for uid, each in _first(memory.terms.items(), MOST_TERMS)}
    strikes = [
        (_name(each.owner), each.times, round(each.age_s), round(each.left_s))
        for each in _first(memory.strikes, MOST_STRIKES)
    ]
    return {
        "terms": msgspec.json.encode(terms).decode(),
        "strikes": msgspec.json.encode(strikes).decode(),
        "at": f"{now_s:.0f}",
    }


def read(data: Mapping[str, str], now_s: float) -> Memory:
    """Return what a leader has written. A part that cannot be read counts as absent."""
    terms = _decode_or_none(data.get("terms", "{}"), dict[str, tuple[int, int, bool, bool, tuple[str, str, str]]]) or {}
    strikes = _decode_or_none(data.get("strikes", "[]"), list[tuple[str, int, float, float]]) or []
    since_s = max(0.0, now_s - (_decode_or_none(data.get("at", ""), float) or now_s))
    return Memory(
        {
            uid: Terms(least, Sizes(unit, doubles), _words(texts), able)
            for uid, (least, unit, doubles, able, texts) in terms.items()
            if least > 0 and unit > 0
        },
        tuple(
            Strike(_owner(name), times, age_s + since_s, max(0.0, left_s - since_s))
            for name, times, age_s, left_s in strikes
            if times > 0
        ),
    )


def trimmed(terms: Terms) -> Terms:
    """Return terms with only the annotations that are kept: those without which some kinds cannot be read."""
    words = {name: text for name in _BOUNDS if (text := terms.annotations.get(name)) and len(text) <= _MOST_TEXT}
    return replace(terms, annotations=words)


def _line(terms: Terms) -> tuple[object, ...]:
    texts = [terms.annotations.get(name, "") for name in _BOUNDS]
    return terms.least, terms.sizes.unit, terms.sizes.doubles, terms.resizable, texts


def _words(texts: Iterable[str]) -> dict[str, str]:
    return {name: text for name, text in zip(_BOUNDS, texts, strict=True) if text}


def _first(items: Iterable[Any], most: int) -> Iterable[Any]:
    return (each for each, _ in zip(items, range(most), strict=False))


def _decode_or_none(text: str, type_: Any) -> Any:
    """Return the value of JSON text; None if it is not of this type."""
    try:
        return msgspec.json.decode(text, type=type_)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None


def _name(owner: Owner) -> str:
    return owner if isinstance(owner, str) else "/".join((owner.kind, owner.namespace, owner.name))


def _owner(name: str) -> Owner:
    kind, _, rest = name.partition("/")
    namespace, _, own = rest.partition("/")
    return JobKey(kind, namespace, own) if rest else name

"""Reads the annotations of a job's owner, which are the same for every kind. An unknown one is named."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from turnout.jobs.model import ANY_SIZE, BadJob, Bounds, Order, Pause, ResizeBudget, Sizes, Spread
from turnout.jobs.scaling_curve import USUAL, capped
from turnout.jobs.wishes.read import wish_of
from turnout.jobs.wishes.tier_words import by_name
from turnout.kube import labels
from turnout.kube.times import unix_s

Notes = Mapping[str, str]

_DURATION = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s?)?")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}(?:Z|[+-][0-9]{2}:[0-9]{2})")
_NUMBER = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,9})?")
_MOST_POINTS = 64
_MOST_UNKNOWN, _LONGEST = 5, 80  # names that are told of, and what of each
DOUBLING = "powers-of-two"


def unknown(notes: Notes) -> tuple[str, ...]:
    """Return the names of our prefix that nobody reads, in order."""
    return tuple(sorted(key for key in notes if key.startswith(f"{labels.PREFIX}/") and key not in labels.NAMES))


def unread(names: tuple[str, ...]) -> str:
    """A sentence on such names: what each may have been meant to be."""
    known = {each.partition("/")[2]: each for each in labels.NAMES}  # the prefix is alike in all of them
    told = []
    for name in names[:_MOST_UNKNOWN]:
        near = get_close_matches(name.partition("/")[2][:_LONGEST], known, 1, 0.85)
        told.append(f"{name[:_LONGEST]}{f' (is {known[near[0]]} meant?)' if near else ''}")
    more = len(names) - len(told)
    return f"nobody reads {', '.join(told)}{f' and {more} more' if more else ''}"


def count(notes: Notes, key: str) -> int | None:
    """A number of workers, None when nothing is said. Raises BadJob."""
    text = notes.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a whole number from 1 to 999999")
    return int(text)


def duration_s(notes: Notes, *keys: str) -> float | None:
    """The first of these that is there, as a Go duration or seconds. Raises BadJob."""
    key = next((key for key in keys if notes.get(key) is not None), None)
    if key is None:
        return None
    text = notes[key]
    found = _DURATION.fullmatch(text)
    if not text or found is None:
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a duration such as 600s or 10m")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


def moment_s(notes: Notes, key: str) -> float | None:
    """A moment, in seconds since 1970. Raises BadJob."""
    text = notes.get(key)
    if text is None:
        return None
    found = unix_s(text) if _MOMENT.fullmatch(text) else None
    if found is None:
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a moment such as 2026-01-31T18:00:00Z")
    return found


def bounds(notes: Notes, least: int, most: int, sizes: Sizes = ANY_SIZE, fixed: str = "") -> Bounds:
    """The bounds of a job: its own, or those that annotations give. Raises BadJob.

    fixed: the field that holds its own, where annotations may only narrow them.
    """
    low, high = count(notes, labels.MIN_WORKERS) or least, count(notes, labels.MAX_WORKERS) or most
    if fixed and not least <= low <= high <= most:
        raise BadJob(f"annotations ask for {low}..{high} workers, and {fixed} allows {least}..{most}")
    if not 1 <= low <= high:
        raise BadJob(f"the least workers are {low} and the most {high}: 1 <= least <= most is needed")
    if low < high and not sizes.has(low):
        steps = "powers of two" if sizes.doubles and sizes.unit == 1 else f"multiples of {sizes.unit}"
        raise BadJob(f"the least workers are {low}: this job has sizes that are {steps}")
    return Bounds(low, high)


def sizes(notes: Notes) -> Sizes:
    """Which sizes the job can have. Raises BadJob."""
    text = notes.get(labels.UNIT)
    if text is None:
        return ANY_SIZE
    if text == DOUBLING:
        return Sizes(1, doubles=True)
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise BadJob(f"annotation {labels.UNIT} is {text[:40]!r}: it must be 1 to 9999, or {DOUBLING}")
    return Sizes(int(text))


def wish(notes: Notes, replicas: int) -> int | None:
    """The size that a person has set by hand: what stands there and we did not write, or what we remember of it.

    None for a job that nobody has resized since it was made. The size that it was submitted with is no wish: an
    unchanged object that is applied again, as GitOps does every few minutes, puts it back.
    """
    wrote, submitted = count(notes, labels.WROTE_WORKERS), count(notes, labels.SUBMITTED_WORKERS)
    if wrote is not None and replicas > 0 and replicas not in (wrote, submitted):
        return replicas
    return count(notes, labels.WISH_WORKERS)


def put_back(notes: Notes, replicas: int) -> int | None:
    """The size that we wrote last, where its object was applied again as it was submitted; None where it was not."""
    wrote, submitted = count(notes, labels.WROTE_WORKERS), count(notes, labels.SUBMITTED_WORKERS)
    return wrote if replicas == submitted and wrote != replicas else None


def pause(notes: Notes) -> tuple[Pause, float | None]:
    """Which changes the owner has forbidden, and until when. A moment alone forbids both. Raises BadJob."""
    text, ends_s = notes.get(labels.PAUSED), moment_s(notes, labels.PAUSED_UNTIL)
    words = {"false": Pause.NONE, "true": Pause.BOTH, "grow": Pause.GROW, "shrink": Pause.SHRINK}
    if text is None:
        return (Pause.NONE, None) if ends_s is None else (Pause.BOTH, ends_s)
    if text not in words:
        raise BadJob(f"annotation {labels.PAUSED} is {text[:40]!r}: it must be true, false, grow or shrink")
    return words[text], ends_s


def order(notes: Notes, priority: Any = None) -> Order:
    """A job's turn: our annotation, 0 to 100, or what its kind says. Raises BadJob."""
    text = notes.get(labels.PRIORITY)
    where = f"annotation {labels.PRIORITY}" if text is not None else "the job's priority"
    told = str(0 if priority is None else priority) if text is None else text
    if not re.fullmatch(r"[0-9]{1,3}", told) or int(told) > 100:
        raise BadJob(f"{where} is {told[:40]!r}: it must be a whole number from 0 to 100")
    return Order(priority=int(told), deadline_s=moment_s(notes, labels.DEADLINE))


def bank(notes: Notes) -> ResizeBudget:
    """Read our own notes on the last change of size. A note that cannot be read counts as absent."""
    text, sign = notes.get(labels.GAINED, ""), 1.0
    if text.startswith("-"):
        text, sign = text[1:], -1.0
    gained = sign * float(text) if _NUMBER.fullmatch(text) else 0.0
    resized = unix_s(notes.get(labels.RESIZED_AT)) or 0.0
    return ResizeBudget(
        gained, resized, duration_s(notes, labels.RESTART_COST), notes.get(labels.SIZED_AT_START) == "true"
    )


def curve(notes: Notes) -> tuple[tuple[int, float], ...]:
    """How fast the job is by its workers: as its owner says, else as its pods have reported. Raises BadJob.

    Nobody scales better than perfectly, and who only says so not better than is usual.
    """
    if (said := notes.get(labels.CURVE)) is not None:
        return capped(points(said, f"annotation {labels.CURVE}"), USUAL)
    try:
        seconds = points(notes.get(labels.MEASURED, ""), "")
    except BadJob:
        return ()  # our own note, which somebody has changed: it is learnt afresh
    return capped(tuple((workers, 1.0 / each) for workers, each in seconds), 1.0)


def points(text: str, where: str) -> tuple[tuple[int, float], ...]:
    """Numbers by workers, `2:1.9,4:3.4`, ascending by workers. Raises BadJob."""
    found: dict[int, float] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts[: _MOST_POINTS + 1]:
        workers, colon, value = part.partition(":")
        number = float(value) if colon and _NUMBER.fullmatch(value) else 0.0
        if not re.fullmatch(r"[1-9][0-9]{0,5}", workers) or number <= 0 or len(parts) > _MOST_POINTS:
            raise BadJob(
                f"{where} is {text[:60]!r}: it must be up to {_MOST_POINTS} of workers:number, as in 1:1,2:1.9"
            )
        found[int(workers)] = number
    return tuple(sorted(found.items()))


def spread(notes: Notes) -> Spread:
    """How far its pods may be apart, in whoever's words a pod says so; what cannot be read is as if it were absent.

    A level is known by its number or its name: only the extender sees the labels of nodes.
    """
    wish = wish_of(notes, [])
    return Spread(min(map(by_name, wish.levels), default=None), wish.multiple)

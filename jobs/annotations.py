"""The annotations of a job's owner, which are the same for every kind of job. Unknown annotations are reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from turnout.jobs.model import ANY_SIZE, BadJob, Bounds, Order, Pause, ResizeBudget, Sizes, Spread
from turnout.jobs.scaling_curve import DEFAULT_POWER, capped
from turnout.jobs.wishes.merge import wish_of
from turnout.jobs.wishes.model import by_name
from turnout.kube import labels
from turnout.kube.times import unix_s

Notes = Mapping[str, str]  # the annotations of an object, by name

_DURATION = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s?)?")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}(?:Z|[+-][0-9]{2}:[0-9]{2})")
_NUMBER = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,9})?")
_MAX_POINTS = 64  # of a scaling curve
_MAX_UNKNOWN_NAMES, _MAX_NAME_CHARS = 5, 80  # unknown names in one report, characters of each
DOUBLING = "powers-of-two"  # the value of the annotation `unit` for sizes 1, 2, 4, 8 …


def unknown_names(notes: Notes) -> tuple[str, ...]:
    """Return the names of annotations that have our prefix and that no program reads, sorted."""
    return tuple(sorted(key for key in notes if key.startswith(f"{labels.PREFIX}/") and key not in labels.NAMES))


def unknown_names_text(names: tuple[str, ...]) -> str:
    """Return a sentence about unknown names of annotations, with a similar known name where there is one.

    The sentence shows the first few names and counts the others. names: at least one.
    """
    known_names = {each.partition("/")[2]: each for each in labels.NAMES}  # the prefix is alike in all of them
    descriptions = []
    for name in names[:_MAX_UNKNOWN_NAMES]:
        matches = get_close_matches(name.partition("/")[2][:_MAX_NAME_CHARS], known_names, 1, 0.85)
        descriptions.append(f"{name[:_MAX_NAME_CHARS]}{f' (is {known_names[matches[0]]} meant?)' if matches else ''}")
    further = len(names) - len(descriptions)
    return f"nobody reads {', '.join(descriptions)}{f' and {further} more' if further else ''}"


def count(notes: Notes, key: str) -> int | None:
    """Return the number of workers in an annotation, 1 to 999999; None if it is absent. Raises BadJob."""
    text = notes.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a whole number from 1 to 999999")
    return int(text)


def duration_s(notes: Notes, *keys: str) -> float | None:
    """Return the duration, in seconds, in the first of these annotations that is set; None if none is set.

    The value is a Go duration such as 10m, or a number of seconds. Raises BadJob.
    """
    key = next((key for key in keys if notes.get(key) is not None), None)
    if key is None:
        return None
    text = notes[key]
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a duration such as 600s or 10m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def moment_s(notes: Notes, key: str) -> float | None:
    """Return the time in an annotation, in seconds since 1970; None if it is absent. Raises BadJob."""
    text = notes.get(key)
    if text is None:
        return None
    time_s = unix_s(text) if _MOMENT.fullmatch(text) else None
    if time_s is None:
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a moment such as 2026-01-31T18:00:00Z")
    return time_s


def bounds(notes: Notes, least: int, most: int, sizes: Sizes = ANY_SIZE, fixed_field: str = "") -> Bounds:
    """Return the bounds of a job. Each bound is the one in its annotation, else the one in its fields. Raises BadJob.

    least, most: the bounds in its fields, in workers. sizes: the sizes that the job can have; the min must be one of
    them. fixed_field: the field that sets the bounds, if annotations may only narrow them; else "".
    """
    low, high = count(notes, labels.MIN_WORKERS) or least, count(notes, labels.MAX_WORKERS) or most
    if fixed_field and not least <= low <= high <= most:
        raise BadJob(f"annotations ask for {low}..{high} workers, and {fixed_field} allows {least}..{most}")
    if not 1 <= low <= high:
        raise BadJob(f"the least workers are {low} and the most {high}: 1 <= least <= most is needed")
    if low < high and not sizes.allows(low):
        steps = "powers of two" if sizes.doubles and sizes.unit == 1 else f"multiples of {sizes.unit}"
        raise BadJob(f"the least workers are {low}: this job has sizes that are {steps}")
    return Bounds(low, high)


def sizes(notes: Notes) -> Sizes:
    """Return the sizes that the annotation `unit` allows, any size without it. Raises BadJob."""
    text = notes.get(labels.UNIT)
    if text is None:
        return ANY_SIZE
    if text == DOUBLING:
        return Sizes(1, doubles=True)
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise BadJob(f"annotation {labels.UNIT} is {text[:40]!r}: it must be 1 to 9999, or {DOUBLING}")
    return Sizes(int(text))


def manual_size(notes: Notes, replicas: int) -> int | None:
    """Return the size that a person set by hand, in workers; None if nobody did since the job was created.

    A size that we did not write was set by hand, except the submitted size: GitOps applies the unchanged object again
    every few minutes. An earlier manual size is remembered in an annotation. replicas: the size in the job's object
    now. Raises BadJob.
    """
    written_size, submitted_size = count(notes, labels.WROTE_WORKERS), count(notes, labels.SUBMITTED_WORKERS)
    if written_size is not None and replicas > 0 and replicas not in (written_size, submitted_size):
        return replicas
    return count(notes, labels.WISH_WORKERS)


def reapplied_size(notes: Notes, replicas: int) -> int | None:
    """Return the size that we wrote last if the object was applied again with its submitted size, else None.

    replicas: the size in the job's object now, in workers. Raises BadJob.
    """
    written_size, submitted_size = count(notes, labels.WROTE_WORKERS), count(notes, labels.SUBMITTED_WORKERS)
    return written_size if replicas == submitted_size and written_size != replicas else None


def pause(notes: Notes) -> tuple[Pause, float | None]:
    """Return which changes of size the owner has forbidden, and until when. Raises BadJob.

    The end is in seconds since 1970, None for no end. An end without a kind of pause forbids all changes.
    """
    text, ends_s = notes.get(labels.PAUSED), moment_s(notes, labels.PAUSED_UNTIL)
    pauses = {"false": Pause.NONE, "true": Pause.BOTH, "grow": Pause.GROW, "shrink": Pause.SHRINK}
    if text is None:
        return (Pause.NONE, None) if ends_s is None else (Pause.BOTH, ends_s)
    if text not in pauses:
        raise BadJob(f"annotation {labels.PAUSED} is {text[:40]!r}: it must be true, false, grow or shrink")
    return pauses[text], ends_s


def order(notes: Notes, priority: Any = None) -> Order:
    """Return a job's place in the order, by our annotations. Raises BadJob.

    priority: the priority in a field of its kind, 0 to 100, which counts if our annotation is absent; None for 0. It
    may have any type. The value of the PriorityClass is not known here.
    """
    text = notes.get(labels.PRIORITY)
    source = f"annotation {labels.PRIORITY}" if text is not None else "the job's priority"
    priority_text = str(0 if priority is None else priority) if text is None else text
    if not re.fullmatch(r"[0-9]{1,3}", priority_text) or int(priority_text) > 100:
        raise BadJob(f"{source} is {priority_text[:40]!r}: it must be a whole number from 0 to 100")
    return Order(priority=int(priority_text), deadline_s=moment_s(notes, labels.DEADLINE))


def resize_budget(notes: Notes) -> ResizeBudget:
    """Return what our own annotations state about the last change of size. An unreadable number counts as absent.

    Raises BadJob if the cost of a restart, which the owner may set, is unreadable.
    """
    text, sign = notes.get(labels.GAINED, ""), 1.0
    if text.startswith("-"):
        text, sign = text[1:], -1.0
    gained = sign * float(text) if _NUMBER.fullmatch(text) else 0.0
    resized = unix_s(notes.get(labels.RESIZED_AT)) or 0.0
    return ResizeBudget(
        gained, resized, duration_s(notes, labels.RESTART_COST), notes.get(labels.SIZED_AT_START) == "true"
    )


def curve(notes: Notes) -> tuple[tuple[int, float], ...]:
    """Return the scaling curve that the owner wrote, else the one that the pods measured, else ().

    A curve is (workers, speed) ascending by workers. A measured curve is capped at perfect scaling, a curve of the
    owner at the default curve. Raises BadJob if the owner's curve is unreadable.
    """
    if (owner_text := notes.get(labels.CURVE)) is not None:
        return capped(points(owner_text, f"annotation {labels.CURVE}"), DEFAULT_POWER)
    try:
        seconds = points(notes.get(labels.MEASURED, ""), "")
    except BadJob:
        return ()  # somebody changed the annotation that we wrote: the curve is measured again
    return capped(tuple((workers, 1.0 / each) for workers, each in seconds), 1.0)


def points(text: str, source: str) -> tuple[tuple[int, float], ...]:
    """Return pairs (workers, number > 0) from a text such as `2:1.9,4:3.4`, ascending by workers. Raises BadJob.

    source: the name of the text for the error message, such as "annotation NAME". () for an empty text.
    """
    values: dict[int, float] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts[: _MAX_POINTS + 1]:
        workers, colon, value = part.partition(":")
        number = float(value) if colon and _NUMBER.fullmatch(value) else 0.0
        if not re.fullmatch(r"[1-9][0-9]{0,5}", workers) or number <= 0 or len(parts) > _MAX_POINTS:
            raise BadJob(
                f"{source} is {text[:60]!r}: it must be up to {_MAX_POINTS} of workers:number, as in 1:1,2:1.9"
            )
        values[int(workers)] = number
    return tuple(sorted(values.items()))


def spread(notes: Notes) -> Spread:
    """Return how far the pods may be spread, from the annotations of a pod in any dialect.

    Unreadable terms count as absent. A level is recognised by its number or name. Only the extender reads the labels
    of nodes.
    """
    terms = wish_of(notes, [])
    return Spread(min(map(by_name, terms.levels), default=None), terms.multiple)

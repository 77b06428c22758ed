"""The annotations of a job's owner, which are the same for every kind of job. Unknown annotations are reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from turnout.jobs.model import (
    ANY_SIZE,
    DEFAULT_POWER,
    BadJob,
    Bounds,
    Order,
    Pause,
    ResizeBudget,
    Sizes,
    Spread,
    capped,
)
from turnout.jobs.wishes.merge import wish_of_pod
from turnout.jobs.wishes.model import tier_of_level
from turnout.kube import labels
from turnout.kube.times import unix_s

Annotations = Mapping[str, str]  # the annotations of an object, by name

_SECONDS = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)"
_DURATION = re.compile(rf"(?:([0-9]{{1,6}})h)?(?:([0-9]{{1,6}})m)?(?:{_SECONDS}s)?")
_MOMENT = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{5,20}(?:Z|[+-][0-9]{2}:[0-9]{2})")
_NUMBER = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,9})?")
_MAX_POINTS = 64  # of a scaling curve
_MAX_UNKNOWN_NAMES, _MAX_NAME_CHARS = 5, 80  # unknown names in one report, characters of each
DOUBLING = "powers-of-two"  # the value of the annotation `unit` for sizes 1, 2, 4, 8 …


def unknown_names(annotations: Annotations) -> tuple[str, ...]:
    """Return the names of annotations that have our prefix and that no program reads, sorted."""
    return tuple(sorted(key for key in annotations if key.startswith(f"{labels.PREFIX}/") and key not in labels.NAMES))


def unknown_names_text(names: tuple[str, ...]) -> str:
    """Return a sentence about unknown names of annotations, with a similar known name for each name that has one.

    names: as unknown_names() returns them, at least one. The sentence shows at most _MAX_UNKNOWN_NAMES names, cut to
    _MAX_NAME_CHARS characters each, and counts the others.
    """
    known_names = {each.partition("/")[2]: each for each in labels.NAMES}  # the prefix is alike in all of them
    descriptions = []
    for name in names[:_MAX_UNKNOWN_NAMES]:
        matches = get_close_matches(name.partition("/")[2][:_MAX_NAME_CHARS], known_names, 1, 0.85)
        descriptions.append(
            f"{name[:_MAX_NAME_CHARS]}{f' (did you mean {known_names[matches[0]]}?)' if matches else ''}"
        )
    further = len(names) - len(descriptions)
    shown = ", ".join(descriptions) + (f" and {further} more" if further else "")
    return f"unknown annotation{'s' if len(names) > 1 else ''} {shown}"


def count(annotations: Annotations, key: str) -> int | None:
    """Return the number of workers in the annotation `key`, 1 to 999999; None if it is absent.

    Raises BadJob for any other text.
    """
    text = annotations.get(key)
    if text is None:
        return None
    if not re.fullmatch(r"[1-9][0-9]{0,5}", text):
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a whole number from 1 to 999999")
    return int(text)


def duration_s(annotations: Annotations, *keys: str) -> float | None:
    """Return the duration, in seconds, in the first of the annotations `keys` that is set; None if none is set.

    The value is hours, minutes and seconds such as 1h30m or 10m, or a number of seconds. Only the seconds may have a
    fraction; other Go durations, such as 500ms or 1.5h, are not accepted, nor is a number without a unit behind another
    unit, such as 1h30. Raises BadJob for any other text.
    """
    key = next((key for key in keys if annotations.get(key) is not None), None)
    if key is None:
        return None
    text = annotations[key]
    match = _DURATION.fullmatch(f"{text}s" if re.fullmatch(_SECONDS, text) else text)
    if not text or match is None:
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a duration such as 600s or 10m")
    hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def moment_s(annotations: Annotations, key: str) -> float | None:
    """Return the time in the annotation `key`, in seconds since 1970; None if it is absent.

    The value is a time of RFC 3339, with its offset from UTC or Z; the seconds may be missing. Raises BadJob for any
    other text.
    """
    text = annotations.get(key)
    if text is None:
        return None
    time_s = unix_s(text) if _MOMENT.fullmatch(text) else None
    if time_s is None:
        raise BadJob(f"annotation {key} is {text[:40]!r}: it must be a time such as 2026-01-31T18:00:00Z")
    return time_s


def bounds(
    annotations: Annotations, minimum: int, maximum: int, sizes: Sizes = ANY_SIZE, fixed_field: str = ""
) -> Bounds:
    """Return the min and the max of a job: each from its annotation, else from the fields of the job.

    minimum, maximum: the min and the max in the fields, in workers. sizes: the sizes that the job can have; if min <
    max, the min must be one of them. fixed_field: the name of the field that sets the bounds, if annotations may only
    narrow them; else "". Raises BadJob if a bound is unreadable, not allowed, or if the min is above the max.
    """
    low, high = count(annotations, labels.MIN_WORKERS) or minimum, count(annotations, labels.MAX_WORKERS) or maximum
    if fixed_field and not minimum <= low <= high <= maximum:
        raise BadJob(f"annotations ask for {low}..{high} workers, and {fixed_field} allows {minimum}..{maximum}")
    if not 1 <= low <= high:
        raise BadJob(f"the min is {low} workers and the max is {high}: 1 <= min <= max is needed")
    if low < high and not sizes.allows(low):
        steps = "powers of two" if sizes.doubles and sizes.unit == 1 else f"multiples of {sizes.unit}"
        raise BadJob(f"the min is {low} workers: this job has sizes that are {steps}")
    return Bounds(low, high)


def sizes(annotations: Annotations) -> Sizes:
    """Return the sizes that the annotation `unit` allows: multiples of a number, or powers of two; any size without it.

    Raises BadJob for a value that is neither 1 to 9999 nor DOUBLING.
    """
    text = annotations.get(labels.UNIT)
    if text is None:
        return ANY_SIZE
    if text == DOUBLING:
        return Sizes(1, doubles=True)
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text):
        raise BadJob(f"annotation {labels.UNIT} is {text[:40]!r}: it must be 1 to 9999, or {DOUBLING}")
    return Sizes(int(text))


def manual_size(annotations: Annotations, replicas: int) -> int | None:
    """Return the size that a person set by hand, in workers; None if nobody did since the job was created.

    annotations: of the job. replicas: the size in the job's object now, in workers. If we have written a size,
    `replicas` is the manual size if it is above 0 and neither the size that we wrote last nor the submitted size, which
    GitOps applies again every few minutes. Otherwise the manual size in our annotation is returned. Raises BadJob if
    one of these annotations is unreadable.
    """
    written_size, submitted_size = (
        count(annotations, labels.WROTE_WORKERS),
        count(annotations, labels.SUBMITTED_WORKERS),
    )
    if written_size is not None and replicas > 0 and replicas not in (written_size, submitted_size):
        return replicas
    return count(annotations, labels.WISH_WORKERS)


def reapplied_size(annotations: Annotations, replicas: int) -> int | None:
    """Return the size that we wrote last, in workers, if the object has its submitted size again; else None.

    The submitted size returns when the unchanged object is applied again. None also if both sizes are equal.
    annotations: of the job. replicas: the size in the job's object now, in workers. Raises BadJob if an annotation is
    unreadable.
    """
    written_size, submitted_size = (
        count(annotations, labels.WROTE_WORKERS),
        count(annotations, labels.SUBMITTED_WORKERS),
    )
    return written_size if replicas == submitted_size and written_size != replicas else None


def pause(annotations: Annotations) -> tuple[Pause, float | None]:
    """Return (changes of size that the owner has forbidden, end of the pause). annotations: of the job.

    The end is in seconds since 1970, None for no end. An end without a kind of pause forbids all changes. The end may
    be past; Job.paused() compares it with the time. Raises BadJob if an annotation is unreadable.
    """
    text, ends_s = annotations.get(labels.PAUSED), moment_s(annotations, labels.PAUSED_UNTIL)
    pauses = {"false": Pause.NONE, "true": Pause.BOTH, "grow": Pause.GROW, "shrink": Pause.SHRINK}
    if text is None:
        return (Pause.NONE, None) if ends_s is None else (Pause.BOTH, ends_s)
    if text not in pauses:
        raise BadJob(f"annotation {labels.PAUSED} is {text[:40]!r}: it must be true, false, grow or shrink")
    return pauses[text], ends_s


def order(annotations: Annotations, priority: Any = None) -> Order:
    """Return a job's place in the order: its priority and its deadline. The value of the PriorityClass is left at 0.

    priority: the priority in a field of the job's kind, of any type, used if our annotation is absent; None for 0.
    Raises BadJob if the priority that is used is no whole number from 0 to 100, or if the deadline is unreadable.
    """
    text = annotations.get(labels.PRIORITY)
    source = f"annotation {labels.PRIORITY}" if text is not None else "the job's priority"
    priority_text = str(0 if priority is None else priority) if text is None else text
    if not re.fullmatch(r"[0-9]{1,3}", priority_text) or int(priority_text) > 100:
        raise BadJob(f"{source} is {priority_text[:40]!r}: it must be a whole number from 0 to 100")
    return Order(priority=int(priority_text), deadline_s=moment_s(annotations, labels.DEADLINE))


def resize_budget(annotations: Annotations) -> ResizeBudget:
    """Return what changes of size have gained and cost a job: the gain, the time and whether it was at the start, in
    annotations of ours; the cost of a restart in one of the owner.

    A gain or time that is unreadable or absent counts as 0, because somebody changed what we wrote. Raises BadJob if
    the cost of a restart, which the owner may set, is unreadable.
    """
    text, sign = annotations.get(labels.GAINED, ""), 1.0
    if text.startswith("-"):
        text, sign = text[1:], -1.0
    gained = sign * float(text) if _NUMBER.fullmatch(text) else 0.0
    resized = unix_s(annotations.get(labels.RESIZED_AT)) or 0.0
    return ResizeBudget(
        gained, resized, duration_s(annotations, labels.RESTART_COST), annotations.get(labels.SIZED_AT_START) == "true"
    )


def curve(annotations: Annotations) -> tuple[tuple[int, float], ...]:
    """Return the scaling curve that the owner wrote, else the one that the pods measured; () if there is neither.

    A curve is (workers, speed), ascending by workers. A measured curve is capped at perfect scaling, a curve of the
    owner at the default curve. An unreadable measured curve counts as absent. Raises BadJob if the owner's curve is
    unreadable.
    """
    if (owner_text := annotations.get(labels.CURVE)) is not None:
        return capped(points(owner_text, f"annotation {labels.CURVE}"), DEFAULT_POWER)
    try:
        seconds = points(annotations.get(labels.MEASURED, ""), "")
    except BadJob:
        return ()  # somebody changed the annotation that we wrote: the curve is measured again
    return capped(tuple((workers, 1.0 / each) for workers, each in seconds), 1.0)


def points(text: str, source: str) -> tuple[tuple[int, float], ...]:
    """Return pairs (workers, number > 0) from a text such as `2:1.9,4:3.4`, ascending by workers; () for an empty text.

    Of two pairs with the same workers the last counts. source: the name of the text for the error message, such as
    "annotation NAME". Raises BadJob for a wrong pair, and for more than _MAX_POINTS pairs.
    """
    values: dict[int, float] = {}
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts[: _MAX_POINTS + 1]:
        workers, colon, value = part.partition(":")
        number = float(value) if colon and _NUMBER.fullmatch(value) else 0.0
        if not re.fullmatch(r"[1-9][0-9]{0,5}", workers) or number <= 0 or len(parts) > _MAX_POINTS:
            raise BadJob(
                f"{source} is {text[:60]!r}: it must be at most {_MAX_POINTS} pairs workers:number, such as 1:1,2:1.9"
            )
        values[int(workers)] = number
    return tuple(sorted(values.items()))


def spread(annotations: Annotations) -> Spread:
    """Return the placement limits of a gang from the annotations of a pod, in any dialect.

    The tier of the result is that of the narrowest required level, None without one. A level whose name is unknown
    counts as a leaf, because only the extender reads the labels of nodes. Unreadable terms count as absent.
    """
    terms = wish_of_pod(annotations, [])
    return Spread(min(map(tier_of_level, terms.levels), default=None), terms.multiple)

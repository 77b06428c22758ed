"""Estimates how long jobs run, by the run times of finished jobs.

A job that has run longer than all known jobs, or whose queue has no finished job, is expected to run as long again as
it has run: in three of five cases within a quarter and four times of that. This is a guess.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.kube.times import unix_s

Floats = NDArray[np.float64]
Ended = tuple[str, str, Mapping[str, Any]]  # the uid, the queue, the object

KEPT = 256  # lives a queue, the latest
KEPT_QUEUES = 1000
ENOUGH = 8  # lives, below which all queues together are asked
YOUNG_S = 60.0  # a job that has just begun says nothing by its age yet
USUAL_S = 3600.0  # of a job that has not begun, where nothing at all is known
_SUREST = 0.99  # a chance is cut off here: nobody runs a hundred times as long again

_ENDS = ("Complete", "Completed", "Succeeded", "Failed", "Terminated", "Aborted")
_BEGINS = ("Running",)
_RAN = re.compile(r"(?:([0-9]{1,6})h)?(?:([0-9]{1,9})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,9})?)s)?")


class RuntimeStats:
    """The run times of finished jobs, by queue, a bounded number of them."""

    def __init__(self) -> None:
        self._all: deque[float] = deque(maxlen=4 * KEPT)
        self._of: dict[str, deque[float]] = {}
        self._counted: set[str] = set()
        self._sorted: dict[str, Floats] = {}

    def add(self, queue: str, lived_s: float) -> None:
        """Add the run time of a finished job of this queue."""
        if lived_s <= 0:
            return
        while len(self._of) >= KEPT_QUEUES and queue not in self._of:
            del self._of[next(iter(self._of))]
        self._of.setdefault(queue, deque(maxlen=KEPT)).append(lived_s)
        self._all.append(lived_s)
        self._sorted.clear()

    def look(self, ended: Iterable[Ended]) -> None:
        """Add the jobs that have ended and still exist, each once."""
        ended_uids = set()
        for uid, queue, raw in ended:
            ended_uids.add(uid)
            if uid not in self._counted and (lived := lived_s(raw)) is not None:
                self.add(queue, lived)
        self._counted = ended_uids

    def of(self, queue: str) -> Floats:
        """Return the run times of a queue's jobs, ascending.

        If the queue has too few, the run times of all queues are returned; empty if there are too few of these, too.
        """
        mine: Sequence[float] = self._of.get(queue, ())
        name = queue if len(mine) >= ENOUGH else ""
        if name not in self._sorted:
            known: Iterable[float] = mine if name else (self._all if len(self._all) >= ENOUGH else ())
            self._sorted[name] = np.sort(np.fromiter(known, dtype=np.float64))
        return self._sorted[name]

    def remaining_s(self, queues: Iterable[tuple[str, int]], ages_s: Floats, chances: Floats) -> Floats:
        """Return how long jobs still run, float[draws, jobs]. ages_s: float[jobs]. chances: 0..1, float[draws, jobs].

        queues: (name, number of its jobs) in the order of the jobs. Each known run time above a job's age is equally
        likely, and so is a time beyond all of them. A larger chance is never a shorter time.
        """
        ages = np.maximum(ages_s, 0.0)
        ends, longer, longest = np.zeros(len(ages), np.int64), np.zeros(len(ages), np.int64), ages.copy()
        known, end, first = [np.zeros(1)], 1, 0  # all lives in one row, so that all jobs are looked up at once
        for queue, count in queues:
            lives, mine = self.of(queue), slice(first, first + count)
            known.append(lives)
            end, first = end + len(lives), first + count
            if len(lives):
                ends[mine] = end
                longer[mine] = len(lives) - np.searchsorted(lives, ages[mine], side="right")
                longest[mine] = np.maximum(lives[-1], ages[mine])
        row, found = np.concatenate(known), np.empty_like(chances)
        for draw, chance in enumerate(chances):  # one by one: small arrays stay in the cache
            places = chance * (longer + 1)
            steps = np.minimum(places.astype(np.int64), longer)
            known_s = row[np.maximum(np.minimum(ends - longer + steps, ends - 1), 0)]
            beyond_s = longest + _as_long_again(longest, places - steps)
            found[draw] = np.where(steps == longer, beyond_s, known_s) - ages
        return found

    def new_s(self, queue: str, running_s: Floats, chances: Floats) -> Floats:
        """Return how long a job runs that has not begun, float[draws]. running_s: ages of running jobs."""
        if len(self.of(queue)):
            return self.remaining_s([(queue, 1)], np.zeros(1), chances[:, None]).reshape(-1)
        usual_s = 2 * float(np.median(running_s)) if len(running_s) else USUAL_S
        return _as_long_again(np.array(usual_s), chances)


def _as_long_again(ages_s: Floats, chances: Floats) -> Floats:
    """Return how long jobs of these ages still run, in seconds.

    A job runs x times its age longer with a chance of 1 / (1 + x).
    """
    sure = np.minimum(chances, _SUREST)
    found: Floats = np.maximum(ages_s, YOUNG_S) * sure / (1 - sure)
    return found


def lived_s(raw: Mapping[str, Any]) -> float | None:
    """Return how long a finished job has run, by its own status; None if the status does not say.

    Jobs of batch and kubeflow write startTime and completionTime, but only a condition for a failed job. Volcano writes
    its phase, conditions by phase, and runningDuration.
    """
    status = raw.get("status") or {}
    if (ran := _RAN.fullmatch(str(status.get("runningDuration") or "-"))) is not None:
        hours, minutes, seconds = (float(part or 0) for part in ran.groups())
        return hours * 3600 + minutes * 60 + seconds
    changes = _changes(status)
    begins = [unix_s(status.get("startTime")), *(changes.get(word) for word in _BEGINS)]
    ends = [unix_s(status.get("completionTime")), *(changes.get(word) for word in _ENDS)]
    began, ended = (next((at for at in found if at is not None), None) for found in (begins, ends))
    return ended - began if began is not None and ended is not None and ended > began else None


def _changes(status: Mapping[str, Any]) -> dict[str, float | None]:
    """Return when each condition, or phase, began. Volcano's conditions have no type, and their status is a phase."""
    found = {}
    for each in [*(status.get("conditions") or ()), status.get("state") or {}]:
        if not isinstance(each, Mapping):
            continue
        if "type" not in each or each.get("status") == "True":
            word = each.get("type") or each.get("phase") or each.get("status") or ""
            found[str(word)] = unix_s(each.get("lastTransitionTime"))
    return found

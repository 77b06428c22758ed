"""Lines of the decision log: what a look saw, the policy, and what came of it, so that it can be decided again.

The first line says everything; each after it says what has changed since the line before. Where lines are kept is
the journal's business, what is decided again from them replay.py's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.model import JobState, Observation, Policy, Queue, Step, TerminatingPod
from turnout.autoscaler.reporting.log_codec import (
    PLAIN_JOB,
    PLAIN_OBSERVATION,
    PLAIN_SEEN,
    PLAIN_SHAPE,
    VERSION,
    BadLog,
    Decision,
    Line,
    RoomChange,
    Told,
    admits_of,
    digest,
    parts_of,
    runs_of,
    same_map,
    taken,
    words,
)
from turnout.jobs.model import Job, JobKey
from turnout.kube.pod_shape import PodShape


class DecisionLogEncoder:
    """Turns looks into lines. program: our version."""

    def __init__(self, program: str = "") -> None:
        self._program = program
        self.forget()

    def forget(self) -> None:
        """The next line says everything."""
        self._number = -1
        self._jobs: dict[JobKey, JobState] = {}
        self._queues: dict[str, Queue] = {}
        self._room: Capacity | None = None
        self._policy: Policy | None = None
        self._words: dict[JobKey, Decision] = {}
        self._shapes: dict[PodShape, int] = {}

    def line(self, seen: Observation, policy: Policy, now_s: float, steps: Sequence[Step]) -> bytes:
        """A look as a line of JSON, with its end."""
        known = len(self._shapes)
        jobs = {each.job.key: each for each in seen.jobs}
        told = words(steps)
        line = Line(
            VERSION,
            self._number + 1,
            now_s,
            digest(steps),
            PLAIN_OBSERVATION(**taken(seen, PLAIN_OBSERVATION)),
            self._room_change(seen.room),
            program="" if self._number >= 0 else self._program,
            policy=None if policy == self._policy else policy,
            leaving=[(pod.queue, self._number_of(pod.shape), pod.row) for pod in seen.leaving],
            jobs=[self._plain(each) for key, each in jobs.items() if not _same(self._jobs.get(key), each)],
            gone=[key for key in self._jobs if key not in jobs],
            queues=[queue for name, queue in seen.queues.items() if self._queues.get(name) != queue],
            queues_gone=[name for name in self._queues if name not in seen.queues],
            news=[step for step in steps if self._words.get(step.key) != told[step.key]],
        )
        line.shapes = [PLAIN_SHAPE(**taken(shape, PLAIN_SHAPE)) for shape in list(self._shapes)[known:]]
        self._number += 1
        self._jobs, self._queues, self._policy, self._words = jobs, dict(seen.queues), policy, told
        self._room = seen.room
        return msgspec.json.encode(line) + b"\n"

    def _number_of(self, shape: PodShape) -> int:
        return self._shapes.setdefault(shape, len(self._shapes))

    def _plain(self, seen: JobState) -> Any:
        job = seen.job
        told = taken(job, PLAIN_JOB)
        told["shape"] = self._number_of(job.shape)
        told["beside"] = tuple((self._number_of(shape), count) for shape, count in job.beside)
        return PLAIN_SEEN(**{**taken(seen, PLAIN_SEEN), "job": PLAIN_JOB(**told)})

    def _room_change(self, room: Capacity) -> RoomChange:
        before, change = self._room, RoomChange(len(room.free))
        if before is None or before.names != room.names or before.free.shape != room.free.shape:
            change.names = list(room.names)
            rows: Iterable[int] = range(len(room.free))
        else:
            rows = np.flatnonzero((before.free != room.free).any(axis=1)).tolist()
        change.rows = [(row, room.free[row].tolist()) for row in rows]
        old = {} if before is None or change.names is not None else parts_of(before)
        new = parts_of(room)
        for shape, (takes, admits) in new.items():
            if shape not in old or not all(
                np.array_equal(*pair) for pair in zip(old[shape], (takes, admits), strict=True)
            ):
                change.kinds.append((self._number_of(shape), takes.tolist(), runs_of(admits)))
        change.dropped = [self._number_of(shape) for shape in old if shape not in new]
        if before is None or not same_map(before.switches, room.switches):
            change.switches = [tier.tolist() for tier in room.switches]
        return change


class Reader:
    """Reads lines in their order."""

    def __init__(self) -> None:
        self._decoder = msgspec.json.Decoder(Line)
        self._number: int | None = None
        self._program = ""
        self._clear()

    def _clear(self) -> None:
        self._jobs: dict[JobKey, JobState] = {}
        self._queues: dict[str, Queue] = {}
        self._words: dict[JobKey, Decision] = {}
        self._shapes: list[PodShape] = []
        self._room: Capacity | None = None
        self._policy: Policy | None = None

    def read(self, text: bytes) -> Told:
        """Read a line. Raises BadLog; then only a line that says everything can be read next."""
        try:
            line = self._decoder.decode(text)
            if line.version != VERSION:
                raise BadLog(f"it is of version {line.version}, and this program reads {VERSION}")
            if line.number and line.number - 1 != self._number:
                raise BadLog("the line that it builds on is missing")
            if not line.number:
                self._clear()
                self._program = line.program
            told = self._taken_in(line)
        except BadLog:
            self._number = None
            raise
        except (msgspec.DecodeError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            self._number = None
            raise BadLog(f"it cannot be read: {error}") from error
        self._number = line.number
        return told

    def _taken_in(self, line: Line) -> Told:
        self._shapes += [PodShape(**taken(msgspec.convert(each, PLAIN_SHAPE), PLAIN_SHAPE)) for each in line.shapes]
        for key in line.gone:
            del self._jobs[key]
            self._words.pop(key, None)
        for each in line.jobs:
            one = self._seen(msgspec.convert(each, PLAIN_SEEN))
            self._jobs[one.job.key] = one
        for name in line.queues_gone:
            del self._queues[name]
        self._queues |= {queue.name: queue for queue in line.queues}
        self._words |= words(line.news)
        self._policy = line.policy or self._policy
        if self._policy is None:
            raise BadLog("no policy has been told")
        self._room = self._changed(line.room)
        jobs = tuple(sorted(self._jobs.values(), key=lambda each: each.job.key))
        look = msgspec.convert(line.look, PLAIN_OBSERVATION)
        leaving = tuple(TerminatingPod(queue, self._shapes[number], row) for queue, number, row in line.leaving)
        seen = Observation(jobs, dict(self._queues), self._room, leaving=leaving, **taken(look, PLAIN_OBSERVATION))
        return Told(seen, self._policy, line.now_s, self._program, dict(self._words), line.digest)

    def _seen(self, plain: Any) -> JobState:
        told = taken(plain.job, PLAIN_JOB)
        told["shape"] = self._shapes[told["shape"]]
        told["beside"] = tuple((self._shapes[number], count) for number, count in told["beside"])
        return JobState(**{**taken(plain, PLAIN_SEEN), "job": Job(**told)})

    def _changed(self, change: RoomChange) -> Capacity:
        before = self._room
        if change.names is None:
            if before is None:
                raise BadLog("no room has been told")
            names, free, parts = tuple(before.names), before.free.copy(), parts_of(before)
        else:
            names, free, parts = tuple(change.names), np.zeros((change.size, len(change.names)), dtype=np.int64), {}
        for row, left in change.rows:
            free[row] = left
        for number in change.dropped:
            del parts[self._shapes[number]]
        for number, takes, runs in change.kinds:
            parts[self._shapes[number]] = np.array(takes, dtype=np.int64), admits_of(runs, len(free))
        switches: Sequence[Any] = () if before is None else before.switches
        if change.switches is not None:
            switches = tuple(np.array(tier, dtype=np.int32) for tier in change.switches)
        takes_of = {shape: part[0] for shape, part in parts.items()}
        return Capacity(names, free, takes_of, {shape: part[1] for shape, part in parts.items()}, switches)


def _same(one: JobState | None, other: JobState) -> bool:
    return one is other or one == other

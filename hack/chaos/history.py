"""The history of a training job: what its processes and the runner have written, and the rounds in it.

invariants.py checks it; train_script.py and testbed/testbed.py write it. A process
notes what it `begun` with, each step that it `took` (before the ranks meet in it), `stepped` and `saved`, and how it
`ended`; the runner each `fault`, each checkpoint that it saw `committed` in storage, and how the job was `over`. Times
are of one clock.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Record:
    """One event in the history. home: id of the pod or host whose loss also loses the worker's memory.

    Fields that an event does not have keep their defaults.
    """

    event: str
    at_s: float
    round: int = 0
    world: int = 0
    rank: int = -1
    worker: str = ""
    home: str = ""
    node: str = ""
    step: int = -1
    epoch: int = -1
    cursor: int = -1
    source: str = ""
    samples: tuple[int, ...] = ()
    loss: float = 0.0
    rate: float = 0.0
    disk: bool = False
    pid: int = 0
    restarts: int = 0  # that were charged to its job so far
    why: str = ""
    model: tuple[float, ...] = ()
    kind: str = ""
    who: str = ""
    code: int = -1


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The planned job. minimum, maximum: bounds of the number of ranks. samples: of the data set. batch: samples of a
    step.

    model: weights of the undisturbed run, () if there was none. harmless: kinds of faults that end no process and lose
    no memory.
    """

    minimum: int
    maximum: int
    samples: int
    batch: int
    epochs: int
    model: tuple[float, ...] = ()
    harmless: frozenset[str] = frozenset()

    @property
    def steps(self) -> int:
        """Return the number of steps of the whole job."""
        return self.epochs * math.ceil(self.samples / self.batch)


def read(text: str) -> Iterator[Record]:
    """Yield the records in the text of one file. Lines that are no JSON, such as one cut by a kill, are skipped."""
    known = set(Record.__dataclass_fields__)
    for line in text.splitlines():
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            continue
        kept: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in found.items() if key in known
        }
        yield Record(**kept)


@dataclass(frozen=True, slots=True)
class Round:
    """The records of one round's processes, in the order of time."""

    number: int
    records: tuple[Record, ...]
    ranks_of: dict[tuple[str, int], dict[int, Record]] = field(default_factory=dict)  # (event, step) to rank to record

    def all(self, event: str) -> list[Record]:
        """Return the round's records of one event, by time."""
        return [record for record in self.records if record.event == event]

    @property
    def start(self) -> int:
        """Return the step from which the round resumed; -1 if no process began."""
        return max((record.step for record in self.all("begun")), default=-1)

    @property
    def begun_s(self) -> float:
        """Return when the first process of the round began, in seconds; -infinity if none did."""
        return min((record.at_s for record in self.all("begun")), default=-math.inf)

    @property
    def reached(self) -> int:
        """Return the newest step that was done in the round; the step from which it resumed if there is none."""
        return max((record.step for record in self.all("stepped")), default=self.start)

    @property
    def steps_s(self) -> list[float]:
        """Return the time of each step of the round, in seconds, ascending: when the first rank had done it."""
        return sorted(
            min(each.at_s for each in ranks.values()) for (e, _), ranks in self.ranks_of.items() if e == "stepped"
        )

    @property
    def saved_by_all(self) -> int:
        """Return the newest step that every rank of the round has in memory; -1 for none."""
        newest = {record.rank: record.step for record in self.all("begun")}
        for record in self.all("saved"):
            newest[record.rank] = max(newest.get(record.rank, -1), record.step)
        world = max((record.world for record in self.records), default=0)
        return min(newest.values()) if len(newest) == world else -1

    @property
    def homes(self) -> frozenset[str]:
        """Return the homes of the processes that began in the round."""
        return frozenset(record.home for record in self.all("begun"))


def rounds_of(records: Iterable[Record]) -> tuple[Round, ...]:
    """Return all rounds in which some process began to train, oldest first."""
    by_number: defaultdict[int, list[Record]] = defaultdict(list)
    for record in records:
        if record.rank >= 0:
            by_number[record.round].append(record)
    found = []
    for number in sorted(by_number):
        lines = tuple(sorted(by_number[number], key=lambda record: record.at_s))
        ranks: defaultdict[tuple[str, int], dict[int, Record]] = defaultdict(dict)
        for record in lines:
            ranks[record.event, record.step].setdefault(record.rank, record)
        found.append(Round(number, lines, dict(ranks)))
    return tuple(found)

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
    """One event in the history. Fields that an event does not have keep their defaults."""

    event: str  # the word, as in the module's docstring
    at_s: float  # CLOCK_MONOTONIC, in seconds
    round: int = 0  # of the rendezvous, from 1
    world: int = 0  # number of ranks in the round
    rank: int = -1  # of the process; -1 for a record of the runner
    worker: str = ""  # TURNOUT_WORKER of the process
    home: str = ""  # id of the pod or host whose loss also loses the worker's memory
    node: str = ""  # Kubernetes node of the process
    step: int = -1
    epoch: int = -1
    cursor: int = -1  # position of the sampler in the epoch
    source: str = ""  # from which the process resumed: "memory", "disk", "fresh" or another source of Checkpointer
    samples: tuple[int, ...] = ()  # IDs of those that the rank trained on in the step
    loss: float = 0.0  # of the rank's part of the batch, weighted
    rate: float = 0.0  # learning rate
    disk: bool = False  # the save also goes to storage
    pid: int = 0
    restarts: int = 0  # that were charged to its job so far
    why: str = ""  # of `ended`: "done" or "stop"; of `over`: what failed
    model: tuple[float, ...] = ()  # weights, of `ended` with "done"
    kind: str = ""  # name of the Fault
    who: str = ""  # what the fault hit; "" if there was nothing to hit
    code: int = -1  # of `over`: 0 if the job completed, else 1


@dataclass(frozen=True, slots=True)
class JobPlan:
    """The planned job."""

    minimum: int  # ranks
    maximum: int  # ranks
    samples: int  # of the data set
    batch: int  # samples of a step, over all ranks
    epochs: int
    model: tuple[float, ...] = ()  # weights of the undisturbed run, () if there was none
    harmless: frozenset[str] = frozenset()  # names of the faults that end no process and lose no memory

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
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in found.items() if key in known
        }
        yield Record(**fields)


@dataclass(frozen=True, slots=True)
class Round:
    """The records of one round's processes, in the order of time."""

    number: int
    records: tuple[Record, ...]
    ranks_of: dict[tuple[str, int], dict[int, Record]] = field(default_factory=dict)  # (event, step) to rank to record

    def records_of(self, event: str) -> list[Record]:
        """Return the round's records of one event, by time."""
        return [record for record in self.records if record.event == event]

    @property
    def start(self) -> int:
        """Return the step from which the round resumed; -1 if no process began."""
        return max((record.step for record in self.records_of("begun")), default=-1)

    @property
    def begun_s(self) -> float:
        """Return when the first process of the round began, in seconds; -infinity if none did."""
        return min((record.at_s for record in self.records_of("begun")), default=-math.inf)

    @property
    def reached(self) -> int:
        """Return the newest step that was done in the round; the step from which it resumed if there is none."""
        return max((record.step for record in self.records_of("stepped")), default=self.start)

    @property
    def steps_s(self) -> list[float]:
        """Return the time of each step of the round, in seconds, ascending: when the first rank had done it."""
        return sorted(
            min(each.at_s for each in ranks.values()) for (e, _), ranks in self.ranks_of.items() if e == "stepped"
        )

    @property
    def saved_by_all(self) -> int:
        """Return the newest step that every rank of the round has in memory; -1 for none."""
        newest = {record.rank: record.step for record in self.records_of("begun")}
        for record in self.records_of("saved"):
            newest[record.rank] = max(newest.get(record.rank, -1), record.step)
        world = max((record.world for record in self.records), default=0)
        return min(newest.values()) if len(newest) == world else -1

    @property
    def homes(self) -> frozenset[str]:
        """Return the homes of the processes that began in the round."""
        return frozenset(record.home for record in self.records_of("begun"))


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

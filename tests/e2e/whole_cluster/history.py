"""Read the records of ranks (train_script.py) as they grow, and answer questions about them."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

from hack.chaos.testbed.history_tail import HistoryTail


class History:
    """The records of one folder, by time."""

    def __init__(self, folder):
        self._folder, self._written, self.records = folder, HistoryTail(folder), []

    def look(self):
        """Take in what is new. Gives itself."""
        self.records += self._written.look()
        self.records.sort(key=lambda each: each.at_s)
        return self

    def of(self, event, **fields):
        """The records of this event with these fields."""
        return [
            each
            for each in self.records
            if each.event == event and all(getattr(each, name) == value for name, value in fields.items())
        ]

    def rounds(self):
        """Return, by round, the records of the ranks that began in it, in the order of their ranks."""
        found = defaultdict(dict)
        for each in self.of("begun"):
            found[each.round][each.rank] = each
        return {number: [by_rank[rank] for rank in sorted(by_rank)] for number, by_rank in sorted(found.items())}

    def newest(self):
        """The last step that any rank tells, None for none."""
        steps = self.of("stepped")
        return steps[-1] if steps else None

    def next_step(self, after_s, world=None):
        """The first step after a moment in a round that began after it, of a world of this size if one is named."""
        began = {each.round: each.at_s for each in reversed(self.of("begun"))}
        for each in self.of("stepped"):
            if began[each.round] > after_s and world in (None, each.world):
                return each
        return None

    def steps(self):
        """Return, by step, the records of the ranks in the last round that made it, in the order of their ranks."""
        last = {each.step: each.round for each in sorted(self.of("stepped"), key=lambda each: each.round)}
        return self._of_rounds("stepped", last)

    def samples(self):
        """Return, by step, the samples that the ranks took in the round that made it, killed ranks included."""
        last = {step: ranks[0].round for step, ranks in self.steps().items()}
        return self._of_rounds("took", last)

    def _of_rounds(self, event, last):
        found = defaultdict(dict)
        for each in self.of(event):
            if last.get(each.step) == each.round:
                found[each.step][each.rank] = each
        return {step: [by_rank[rank] for rank in sorted(by_rank)] for step, by_rank in sorted(found.items())}

    def process(self, **fields):
        """The process that writes the file of a rank: its id as this machine has it. None where it is no more."""
        began = self.of("begun", **fields)[-1]
        file = self._folder / f"{began.worker}.{began.round}.{began.rank}.jsonl"
        inode = file.stat().st_ino
        for link in Path("/proc").glob("[0-9]*/fd/*"):
            try:
                if os.readlink(link).endswith(".jsonl") and link.stat().st_ino == inode:
                    return int(link.parts[2])
            except OSError:
                continue  # it has ended meanwhile
        return None

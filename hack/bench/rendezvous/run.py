"""The time in which agents meet, and in which they notice a death and form the next world.

Ours beside NVRx's barrier, torch's c10d and the floor of the machine's loopback, in one run and interleaved, where
names come from files only; then with a name server that is silent. The agents are many in a few processes of one
machine, not as many nodes. Meetings are compared by their best time, since a busy machine only ever adds to it; deaths
by the worst.
"""

from __future__ import annotations

import math
import resource
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from hack.bench.rendezvous import mount_namespace
from hack.bench.rendezvous.agents import PROCESSES, WorldTimes
from hack.bench.rendezvous.baselines import NoBaselines, folder, nvrx_requirement
from hack.bench.rendezvous.mount_namespace import NameSource
from hack.bench.rendezvous.ours import KNOCKING
from hack.bench.rendezvous.testbed import Testbed
from hack.bench.support.measure import load_note, middle, ratio
from hack.bench.support.outcome import Outcome, Scale, Table, Target

LIMITS_S = {"floor": 20.0, "ours": 60.0, "nvrx": 60.0, "c10d": 60.0}
BATCHES = 3  # a ratio of ours to ours that fails is measured twice again: the machine may have been busy
KINDS = {
    "floor": "floor: connect, 64 bytes each way",
    "ours": "ours: connect and join",
    "nvrx": "baseline: NVRx barrier, connected before",
    "c10d": "baseline: c10d of torch, connected before",
}
MAX_GROWTH, MAX_SLOWED = 4, 1.02  # from 1,024 to 4,096; by a silent name server
COLUMNS = {"from the word to the last agent, s": "", "times": "d", "best": ".3f", "median": ".3f", "ready in": ".3f"}
COLUMNS |= {"": ""}


class WorldSizes(NamedTuple):
    """Numbers of agents for the targets about scale."""

    standard: int = 1_024
    large: int = 4_096
    largest: int = 10_000


FULL_SIZES = WorldSizes()


@dataclass(frozen=True, slots=True)
class RendezvousPlan:
    """The sizes and repetitions of the meetings."""

    sizes: Sequence[int]  # of meetings of ours, the floor and NVRx
    times: int  # of each of these
    c10d: Sequence[int]  # sizes of meetings of torch's
    large: int  # meetings of crowds.large, each beside one of crowds.standard
    deaths: int  # meetings in which one agent dies
    named: int  # pairs of meetings, with names and without
    crowds: WorldSizes = FULL_SIZES


QUICK = RendezvousPlan((64, FULL_SIZES.standard), 3, (64,), 2, 2, 3)
SMALLEST = RendezvousPlan((4,), 1, (4,), 1, 1, 1, WorldSizes(4, 6, 8))
FULL = RendezvousPlan((64, 256, FULL_SIZES.standard, 2_048), times=7, c10d=(64, 128), large=5, deaths=7, named=9)


@dataclass(slots=True)
class RendezvousResults:
    """The meetings of one run."""

    meetings: Mapping[tuple[str, int], Sequence[WorldTimes]] = field(default_factory=dict)  # by kind and agents
    standard_times: Sequence[WorldTimes] = ()  # of crowds.standard, in the minutes of crowds.large
    deaths: Sequence[WorldTimes] = ()  # one of them dies
    named: Sequence[WorldTimes] = ()  # where names come from files
    unnamed: Sequence[WorldTimes] = ()  # where nobody answers
    crowds: WorldSizes = FULL_SIZES

    def best_s(self, kind: str, agents: int) -> float:
        """Return the time of the shortest rendezvous, in seconds, as `best_s` of this module. kind: key of KINDS."""
        return best_s(self.meetings.get((kind, agents), ()))

    def targets(self) -> list[Target]:
        """Return the measured values with the targets of docs/benchmarks.md."""
        standard, large, largest = self.crowds
        ours_s, nvrx_s, large_s = (
            self.best_s(*each) for each in (("ours", standard), ("nvrx", standard), ("ours", large))
        )
        largest_meets = float(math.isfinite(self.best_s("ours", largest)))
        death_noticed_s, world_renewed_s = (
            max((getattr(times, name) for times in self.deaths), default=math.nan)
            for name in ("noticed_s", "renewed_s")
        )
        slowed = ratio(best_s(self.unnamed), best_s(self.named))
        return [
            Target(f"{standard:,} agents meet, s", ours_s, "<=", 0.35),
            Target(f"{standard:,} agents / NVRx's barrier", ratio(ours_s, nvrx_s), "<=", 0.5),
            Target(f"{large:,} agents / {standard:,}", ratio(large_s, best_s(self.standard_times)), "<=", MAX_GROWTH),
            Target(f"{largest:,} agents meet (1: they do)", largest_meets, ">=", 1),
            Target("a death is noticed, s", death_noticed_s, "<=", 1.5),
            Target("then the others hold a world, s", world_renewed_s, "<=", 1.0),
            Target("with a silent name server / without", slowed, "<=", MAX_SLOWED),
        ]

    def table(self) -> Table:
        """Return the table, a row for each kind of rendezvous and number of agents."""
        rows = [
            (f"{agents:,} agents, {KINDS[kind]}", *_times(mets))
            for (kind, agents), mets in sorted(
                self.meetings.items(), key=lambda each: (each[0][1], [*KINDS].index(each[0][0]))
            )
        ]
        for words, mets in (("beside the large crowd", self.standard_times), ("names from files", self.named)):
            rows.append((f"{self.crowds.standard:,} agents, ours, {words}", *_times(mets)))
        rows.append((f"{self.crowds.standard:,} agents, ours, no name server answers", *_times(self.unnamed)))
        return Table(f"agents that meet over loopback, in {PROCESSES} processes", COLUMNS, rows)


def _times(mets: Sequence[WorldTimes]) -> tuple[int, float, float, float, str]:
    """Return the cells of a row: number of `mets`, best, median, best time until ready, and the first error."""
    why = next((met.why for met in mets if met.why), "")
    ready_s = min((met.ready_s for met in mets), default=math.nan)
    return len(mets), best_s(mets), middle(met.took_s for met in mets), ready_s, why


def best_s(mets: Sequence[WorldTimes]) -> float:
    """Return the shortest time of `mets`, in seconds; infinite if none of them was completed, NaN if there are none."""
    return min((met.took_s for met in mets), default=math.nan)


def run(scale: Scale) -> Outcome:
    """Measure everything. The notes name what this machine lacks; the targets of those parts are not met."""
    plan = scale.pick(FULL, QUICK, SMALLEST)
    notes = [_note_on_files(), _note_on_agents(), _note_on_versions()]
    with tempfile.TemporaryDirectory(prefix="turnout-bench-") as name:
        scratch, names = Path(name), NameSource.QUIET
        if why := mount_namespace.why_not_permitted(names, scratch):
            names = NameSource.MACHINE
            notes.append(f"No private mount namespace ({why}): names are looked up as this machine does it.")
        path: list[Path] = []
        try:
            path = [folder()]
        except NoBaselines as error:
            notes.append(f"NVRx is not here: {error}")
        found = RendezvousResults(
            *_meetings(plan, names, scratch, path), *_compare_name_sources(plan, scratch, notes), plan.crowds
        )
    title = "rendezvous: agents that meet, and deaths that are noticed"
    return Outcome(title, [found.table()], found.targets(), [*notes, load_note()])


def _meetings(
    plan: RendezvousPlan, names: NameSource, scratch: Path, path: Sequence[Path]
) -> tuple[dict[tuple[str, int], list[WorldTimes]], list[WorldTimes], list[WorldTimes]]:
    """Time each kind of rendezvous in turn.

    Returns (times by kind and number of agents, those of the standard size beside the large ones, those with a death).
    path: folder of the baselines, () if NVRx is missing. scratch: folder for files. names: how host names are resolved.
    """
    standard_times: list[WorldTimes] = []
    meetings: defaultdict[tuple[str, int], list[WorldTimes]] = defaultdict(list)
    known = ["nvrx", "c10d"] if path else ["c10d"]
    with Testbed([], names, scratch) as ours, Testbed(known, names, scratch, path) as theirs:

        def gather(kind: str, agents: int) -> None:
            stage = ours if kind in ("ours", "floor") else theirs
            meetings[kind, agents].append(stage.meet(kind, agents, LIMITS_S[kind]))

        for _ in range(plan.times):
            for agents in plan.sizes:
                for kind in ("floor", "ours", *known[:-1]):
                    gather(kind, agents)
        for agents in plan.c10d:
            gather("c10d", agents)
        for _ in range(BATCHES):
            for _ in range(plan.large):
                gather("floor", plan.crowds.large)
                standard_times.append(ours.meet("ours", plan.crowds.standard, LIMITS_S["ours"]))
                gather("ours", plan.crowds.large)
            if ratio(best_s(meetings["ours", plan.crowds.large]), best_s(standard_times)) <= MAX_GROWTH:
                break
        for kind in ("floor", "ours"):
            gather(kind, plan.crowds.largest)
        deaths = [ours.meet("ours", plan.crowds.standard, LIMITS_S["ours"], one_dies=True) for _ in range(plan.deaths)]
    return dict(meetings), standard_times, deaths


def _compare_name_sources(
    plan: RendezvousPlan, scratch: Path, notes: list[str]
) -> tuple[list[WorldTimes], list[WorldTimes]]:
    """Time our rendezvous where names come from files, and where no name server answers: (with names, without).

    notes: gets a note on the name server. Both are [] if this user may not run commands in a private namespace.
    scratch: folder for files.
    """
    if why := mount_namespace.why_not_permitted(NameSource.SILENT, scratch):
        notes.append(f"A silent name server is not possible here: {why}")
        return [], []
    named: list[WorldTimes] = []
    unnamed: list[WorldTimes] = []
    with Testbed([], NameSource.ALONE, scratch) as files, Testbed([], NameSource.SILENT, scratch) as silent:
        answer = silent.meet("lookup", 1, 2.0)
        for _ in range(BATCHES):
            for _ in range(plan.named):
                named.append(files.meet("ours", plan.crowds.standard, LIMITS_S["ours"]))
                unnamed.append(silent.meet("ours", plan.crowds.standard, LIMITS_S["ours"]))
            if ratio(best_s(unnamed), best_s(named)) <= MAX_SLOWED:
                break
    notes.append(f"One plain look-up with the silent name server: {answer.why or f'{answer.took_s:.3f} s'}.")
    return named, unnamed


def _note_on_agents() -> str:
    """Return the note on how agents are simulated."""
    return (
        "Simulated agents share one machine: its kernel carries both ends of every connection. "
        f"Of ours {KNOCKING} in each of {PROCESSES} processes connect at a time: up to {KNOCKING * PROCESSES:,} all do."
    )


def _note_on_versions() -> str:
    """Return the note on the versions of the baselines."""
    try:
        return f"Baselines: torch {metadata.version('torch')}, {nvrx_requirement()}."
    except metadata.PackageNotFoundError:
        return "torch is not here: make setup-launcher"


def _note_on_files() -> str:
    """Return the note on the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"Files that one process may open: {hard:,}, {soft:,} without asking. A coordinator needs one for each member."
    )

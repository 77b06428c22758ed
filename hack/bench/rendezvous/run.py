"""The time in which agents meet and notice a death, and the cost of a killed training process.

Ours beside NVRx's barrier, torch's c10d and the floor of the machine's loopback, in one run and interleaved, where
names come from files only; then with a name server that is silent. The agents are many in a few processes of one
machine, not as many nodes. Restarts are those of whole jobs: turnout-run and torchrun, with the same training process.
"""

from __future__ import annotations

import os
import resource
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from hack.bench.rendezvous import jobs, mount_namespace
from hack.bench.rendezvous.agents import PROCESSES, WorldTimes
from hack.bench.rendezvous.baselines import NoBaselines, folder, nvrx
from hack.bench.rendezvous.jobs import Launcher
from hack.bench.rendezvous.mount_namespace import Names
from hack.bench.rendezvous.ours import KNOCKING
from hack.bench.rendezvous.phase_times import Fault
from hack.bench.rendezvous.results import FULL_CROWDS, MOST_GROWTH, MOST_SLOWED, Crowds, Results, best_s, ratio
from hack.bench.rendezvous.testbed import Testbed
from hack.bench.support.outcome import Outcome, Scale

LIMITS_S = {"floor": 20.0, "ours": 60.0, "nvrx": 60.0, "c10d": 60.0}
LIMIT_OF_A_FAULT_S = 30.0
LIMIT_OF_A_LOST_AGENT_S = 90.0
BATCHES = 3  # a ratio of ours to ours that fails is measured twice again: the machine may have been busy


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each is done. sizes: meetings of ours, the floor and NVRx; c10d: meetings of torch's.

    large: meetings of crowds.large, each beside one of crowds.together. deaths: meetings in which one agent dies.
    named: pairs of meetings, with names and without. faults: kills by launcher. shrinks: launchers that lose a whole
    agent.
    """

    sizes: Sequence[int]
    times: int
    c10d: Sequence[int]
    large: int
    deaths: int
    named: int
    faults: Sequence[tuple[Launcher, int]]
    shrinks: Sequence[Launcher] = ()
    crowds: Crowds = FULL_CROWDS


QUICK = Plan((64, FULL_CROWDS.together), 3, (64,), 2, 2, 3, ((jobs.OURS, 3), (jobs.TORCH, 3)))
SMALLEST = Plan((4,), 1, (4,), 1, 1, 1, ((jobs.OURS, 1),), crowds=Crowds(4, 6, 8))
FULL = Plan(
    sizes=(64, 256, FULL_CROWDS.together, 2_048),
    times=7,
    c10d=(64, 128),
    large=5,
    deaths=7,
    named=9,
    faults=((jobs.OURS, 21), (jobs.TORCH, 12), (jobs.OURS_TWO, 6), (jobs.TORCH_TWO, 3), (jobs.TORCH_SHIPPED, 3)),
    shrinks=(jobs.OURS_SHRINKS, jobs.TORCH_SHRINKS),
)


def run(scale: Scale) -> Outcome:
    """Measure everything."""
    plan = scale.pick(FULL, QUICK, SMALLEST)
    with tempfile.TemporaryDirectory(prefix="turnout-bench-") as name:
        return measured(plan, Path(name))


def measured(plan: Plan, scratch: Path) -> Outcome:
    """One run. What cannot be had on this machine is told in the notes, and its targets are not met."""
    notes = [_files_told(), _crowd_told(), _versions_told()]
    names = Names.QUIET
    if why := mount_namespace.permitted(names, scratch):
        names = Names.MACHINE
        notes.append(f"No private mount namespace ({why}): names are looked up as this machine does it.")
    path: list[Path] = []
    try:
        path = [folder()]
    except NoBaselines as error:
        notes.append(f"NVRx is not here: {error}")
    meetings, beside, deaths = _meetings(plan, names, scratch, path)
    named, unnamed, why = _with_names_and_without(plan, scratch)
    notes.append(why)
    restarts = _restarts(plan, names, scratch)
    shrinks = {
        launcher.name: jobs.lost_agent(launcher, names, scratch, LIMIT_OF_A_LOST_AGENT_S) for launcher in plan.shrinks
    }
    found = Results(meetings, beside, deaths, named, unnamed, restarts, shrinks, crowds=plan.crowds)
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    notes.append(f"Load of the machine over the last 1, 5 and 15 minutes: {load} on {os.cpu_count()} cores.")
    title = "rendezvous: agents that meet, deaths that are noticed, processes that start again"
    return Outcome(title, found.tables(), found.figures(), found.targets(), notes)


def _meetings(
    plan: Plan, names: Names, scratch: Path, path: Sequence[Path]
) -> tuple[dict[tuple[str, int], list[WorldTimes]], list[WorldTimes], list[WorldTimes]]:
    """Time each kind of rendezvous in turn, small ones beside large ones, and those in which one agent dies."""
    beside: list[WorldTimes] = []
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
                beside.append(ours.meet("ours", plan.crowds.together, LIMITS_S["ours"]))
                gather("ours", plan.crowds.large)
            if ratio(best_s(meetings["ours", plan.crowds.large]), best_s(beside)) <= MOST_GROWTH:
                break
        for kind in ("floor", "ours"):
            gather(kind, plan.crowds.largest)
        deaths = [ours.meet("ours", plan.crowds.together, LIMITS_S["ours"], one_dies=True) for _ in range(plan.deaths)]
    return dict(meetings), beside, deaths


def _with_names_and_without(plan: Plan, scratch: Path) -> tuple[list[WorldTimes], list[WorldTimes], str]:
    """Run the agents where names come from files and where each look-up fails; say how the latter went."""
    if why := mount_namespace.permitted(Names.SILENT, scratch):
        return [], [], f"A silent name server cannot be had here: {why}"
    named: list[WorldTimes] = []
    unnamed: list[WorldTimes] = []
    with Testbed([], Names.ALONE, scratch) as files, Testbed([], Names.SILENT, scratch) as silent:
        answer = silent.meet("lookup", 1, 2.0)
        for _ in range(BATCHES):
            for _ in range(plan.named):
                named.append(files.meet("ours", plan.crowds.together, LIMITS_S["ours"]))
                unnamed.append(silent.meet("ours", plan.crowds.together, LIMITS_S["ours"]))
            if ratio(best_s(unnamed), best_s(named)) <= MOST_SLOWED:
                break
    return named, unnamed, f"One plain look-up with the silent name server: {answer.why or f'{answer.took_s:.3f} s'}."


def _restarts(plan: Plan, names: Names, scratch: Path) -> dict[str, list[Fault]]:
    """Run a job of each launcher in turn, until each has been killed as often as planned."""
    found: dict[str, list[Fault]] = {launcher.name: [] for launcher, _ in plan.faults}
    while due := [(launcher, left) for launcher, kills in plan.faults if (left := kills - len(found[launcher.name]))]:
        for launcher, left in due:
            times = min(left, jobs.RESTARTS)
            found[launcher.name] += jobs.faults(launcher, names, scratch, times, LIMIT_OF_A_FAULT_S)
    return found


def _crowd_told() -> str:
    return (
        "Simulated agents share one machine: its kernel carries both ends of every connection. "
        f"Of ours {KNOCKING} in each of {PROCESSES} processes knock at a time: of {KNOCKING * PROCESSES:,} all at once."
    )


def _versions_told() -> str:
    try:
        return f"Baselines: torch {metadata.version('torch')}, {nvrx()}."
    except metadata.PackageNotFoundError:
        return "torch is not here: make setup-launcher"


def _files_told() -> str:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        f"Files that one process may open: {hard:,}, {soft:,} without asking. A coordinator needs one for each member."
    )

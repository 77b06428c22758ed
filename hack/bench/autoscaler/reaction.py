"""How soon a job is told to shrink for one that comes to wait, on a real API server, the autoscaler as it is shipped.

The time runs from the first event of a gang on a watch (its first pod without a node, or its PodGroup that is Pending
or Inqueue) to the first event that shows a job shrunk for it. Every GPU is lent, so each gang needs a shrink. The same
run measures two baselines: the time until the API server shows a new pod, and the time of a watcher that patches a job
at once, without a decision.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from hack.bench.autoscaler.scene import ClusterSize
from hack.bench.autoscaler.testbed import Testbed, open_testbed
from hack.bench.support.outcome import Outcome, Scale, Table, Target, combine
from hack.bench.support.percentiles import interpolated_percentile
from hack.controlplane.plane import ControlPlane

SIZE = ClusterSize(jobs=1000, workers=4, gpus=1)
LARGE = ClusterSize(jobs=10_000, workers=2, gpus=4, others=5000)
FORMS = ("pods", "Pending", "Inqueue")


@dataclass(frozen=True, slots=True)
class ReactionPlan:
    """How many gangs come of each form."""

    singles: int  # gangs that come one by one
    bursts: int
    baselines: int  # repetitions of each baseline
    together: int = 10  # gangs of a burst


FULL, QUICK, LARGE_PLAN = ReactionPlan(100, 10, 100), ReactionPlan(20, 2, 40), ReactionPlan(30, 3, 0)
SMALLEST = ClusterSize(jobs=12, workers=3, gpus=2, others=4), ReactionPlan(singles=1, bursts=1, baselines=2, together=2)


@dataclass(frozen=True, slots=True)
class ReactionResults:
    """The measurements of the autoscaler on one cluster."""

    # Seconds by what was timed: "floor" (a new pod is seen), "trivial" (a watcher that patches a job at once), each
    # form of gang, and "FORM, bursts".
    times_s: dict[str, list[float]]
    start_s: float  # from the autoscaler's start until it has listed everything and leads
    decide_s: float  # mean time of a decision
    decisions: int  # number of decisions
    mib: float  # memory at the end
    peak_mib: float  # most memory so far


def measure(scale: Scale) -> Outcome:
    """Measure the autoscaler's reaction times. Return the tables and targets.

    With Scale.FULL and QUICK there are 1,000 jobs. FULL measures a second cluster, of 10,000 jobs and 100,000 GPUs. The
    third scale is for tests.
    """
    size, plan = scale.pick((SIZE, FULL), (SIZE, QUICK), SMALLEST)
    found = asyncio.run(measure_on_new_plane(size, plan))
    outcomes = [_outcome(found, size, list(_targets(found, f"{SIZE.jobs:,} jobs")))]
    if scale is Scale.FULL:
        large = asyncio.run(measure_on_new_plane(LARGE, LARGE_PLAN))
        name = f"peak MiB of the autoscaler, {LARGE.jobs:,} jobs and {LARGE.nodes * 8:,} GPUs"
        outcomes.append(_outcome(large, LARGE, [Target(name, large.peak_mib, "<=", 400)]))
    return combine("reaction", *outcomes)


async def measure_on_new_plane(size: ClusterSize, plan: ReactionPlan) -> ReactionResults:
    """Run `measure_reactions` on a new control plane, which is stopped afterwards."""
    plane = await asyncio.to_thread(ControlPlane().start)
    try:
        return await measure_reactions(plane, size, plan, random.Random(1))
    finally:
        await asyncio.to_thread(plane.stop)


async def measure_reactions(
    plane: ControlPlane, size: ClusterSize, plan: ReactionPlan, rng: random.Random
) -> ReactionResults:
    """Create the cluster on an empty control plane, start the autoscaler, and measure how soon jobs shrink for gangs.

    plan: how many gangs come. rng: chooses pauses. Raises TimeoutError if a reaction does not come.
    """
    async with open_testbed(plane, size, rng) as testbed:
        times = {
            "floor": await testbed.time_new_pods(plan.baselines),
            "trivial": await testbed.time_plain_patches(plan.baselines),
        }
        start_s = await testbed.start_autoscaler()
        for form in FORMS:
            await testbed.react(form)  # the first ones warm it up
        decision_count, taken_s = await _decisions(testbed)
        for form in FORMS:
            times[form], times[f"{form}, bursts"] = await _reactions(testbed, form, plan)
        more, after_s = await _decisions(testbed)
        decide_s = (after_s - taken_s) / max(1, more - decision_count)
        return ReactionResults(
            times, start_s, decide_s, int(more - decision_count), testbed.memory_mib(), testbed.memory_mib("VmHWM")
        )


async def _reactions(testbed: Testbed, form: str, plan: ReactionPlan) -> tuple[list[float], list[float]]:
    """Return the reaction times, in seconds, to gangs that come one by one, and to gangs that come together.

    form: as in Testbed.react.
    """
    single_s = [took for _ in range(plan.singles) for took in await testbed.react(form)]
    return single_s, [took for _ in range(plan.bursts) for took in await testbed.react(form, plan.together)]


async def _decisions(testbed: Testbed) -> tuple[float, float]:
    name = "turnout_autoscaler_decide_seconds"
    return await testbed.metric(f"{name}_count"), await testbed.metric(f"{name}_sum")


_WORDS = {
    "floor": "baseline: a pod is created and seen",
    "trivial": "baseline: a pod is seen, a job patched at once",
    "pods": "pods of a gang",
}


def _outcome(found: ReactionResults, size: ClusterSize, targets: Sequence[Target]) -> Outcome:
    """Return the table of reaction times, the targets and the note. Forms without a reaction have no row.

    size: of the cluster, named in each row.
    """
    rows = []
    for name, times in found.times_s.items():
        if times:
            form, _, more = name.partition(", ")
            word = _WORDS.get(form, f"PodGroup that is {form}") + (f", {more}" if more else "")
            high = (interpolated_percentile(times, share) for share in (0.9, 0.99))
            ms = [each * 1e3 for each in (median(times), *high, max(times))]
            rows.append((f"{size.jobs:,} jobs: {word}", len(times), *ms))
    columns = {"what": "", "times": "d", "median": ".1f", "p90": ".1f", "p99": ".1f", "most": ".1f"}
    table = Table("milliseconds from the first event of a gang to that of a job that shrinks", columns, rows)
    return Outcome("reaction", [table], targets, [_note(found, size)])


def _targets(found: ReactionResults, where: str) -> Iterator[Target]:
    """Yield the targets for pods of gangs and for PodGroups, single gangs and bursts together.

    where: the size of the cluster, a part of the targets' names.
    """
    groups = ("Pending", "Inqueue")
    of = found.times_s
    pods = [*of["pods"], *of["pods, bursts"]]
    reaction_s = [took for form in groups for name in (form, f"{form}, bursts") for took in of[name]]
    yield Target(f"p99 with {where}, pods of a gang, s", interpolated_percentile(pods, 0.99), "<=", 1)
    yield Target(
        f"p99 with {where}, PodGroups Pending and Inqueue, s", interpolated_percentile(reaction_s, 0.99), "<=", 1
    )


def _note(found: ReactionResults, size: ClusterSize) -> str:
    """Return the note about the size of the cluster, and the time and memory of the autoscaler."""
    return (
        f"{size.jobs:,} Indexed Jobs, {size.pods:,} pods, {size.nodes * 8:,} GPUs: the autoscaler started, saw "
        f"everything and led after {found.start_s:.1f} s; {found.decisions} decisions, {found.decide_s * 1e3:.1f} ms "
        f"each on average; {found.mib:.0f} MiB held, {found.peak_mib:.0f} at most."
    )

"""The cost of a killed training process, phase by phase, under turnout-run and under torchrun.

Whole jobs of two processes, with the same training script. Medians are compared: a busy machine only ever adds.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.bench.recovery import jobs
from hack.bench.recovery.phase_times import PHASES, KillResult, median_phase_ends
from hack.bench.rendezvous import mount_namespace
from hack.bench.rendezvous.mount_namespace import NameSource
from hack.bench.support.measure import middle as median
from hack.bench.support.measure import ratio
from hack.bench.support.outcome import Outcome, Scale, Table, Target
from hack.bench.support.percentiles import nearest_rank

LIMIT_S = 30.0
LIMIT_OF_A_LOST_AGENT_S = 90.0
FULL = ((jobs.OURS, 21), (jobs.TORCH, 12), (jobs.OURS_TWO, 6), (jobs.TORCH_TWO, 3), (jobs.TORCH_SHIPPED, 3))
QUICK, SMALLEST = ((jobs.OURS, 3), (jobs.TORCH, 3)), ((jobs.OURS, 1),)
COLUMNS = {"SIGKILL, then s until": "", "kills": "d", "lost": "d", "burned": "d", **dict.fromkeys(PHASES, ".3f")}
COLUMNS |= {"p95": ".3f"}
Faults = Mapping[str, Sequence[KillResult]]  # by the name of the launcher


def measure(scale: Scale) -> Outcome:
    """Kill training processes of both launchers as often as the scale asks, and return the outcome.

    The full scale also kills one agent of two, once for each launcher.
    """
    with tempfile.TemporaryDirectory(prefix="turnout-bench-") as folder:
        scratch = Path(folder)
        names = NameSource.MACHINE if mount_namespace.why_not_permitted(NameSource.QUIET, scratch) else NameSource.QUIET
        killed = _kill_launchers(scale.pick(FULL, QUICK, SMALLEST), names, scratch)
        for launcher in scale.pick((jobs.OURS_SHRINKS, jobs.TORCH_SHRINKS), (), ()):
            lost = jobs.kill_agent_result(launcher, names, scratch, LIMIT_OF_A_LOST_AGENT_S)
            killed[f"{launcher.name}: an agent"] = [lost]
    return outcome(killed)


def _kill_launchers(
    plan: Sequence[tuple[jobs.Launcher, int]], names: NameSource, scratch: Path
) -> dict[str, Sequence[KillResult]]:
    """Run jobs of the launchers in turn until each launcher's processes have been killed as often as the plan says.

    Returns what each kill cost, by the name of the launcher. plan: (launcher, number of kills). names: see
    `mount_namespace`. scratch: folder for the jobs.
    """
    found: dict[str, list[KillResult]] = {launcher.name: [] for launcher, _ in plan}
    while due := [(launcher, left) for launcher, kills in plan if (left := kills - len(found[launcher.name]))]:
        for launcher, left in due:
            found[launcher.name] += jobs.kill_results(launcher, names, scratch, min(left, jobs.RESTARTS), LIMIT_S)
    return dict(found)


def outcome(killed: Faults) -> Outcome:
    """Return the table of kills and the targets, which compare ours with torchrun.

    killed: what each kill cost, by the launcher's name.
    """
    ours, torch = ([fault.took_s for fault in killed.get(each.name, ())] for each in (jobs.OURS, jobs.TORCH))
    title = "two processes with 64 MiB of state: medians; the most restarts that one kill burned"
    return Outcome(
        "restarts",
        [Table(title, COLUMNS, [_row(name, faults) for name, faults in killed.items()])],
        [
            Target("restart, median / torchrun's", ratio(median(ours), median(torch)), "<=", 0.1),
            Target("restart, p95 / torchrun's median", ratio(nearest_rank(ours, 0.95), median(torch)), "<=", 0.3),
        ],
    )


def _row(name: str, faults: Sequence[KillResult]) -> tuple[object, ...]:
    """Return the row of one launcher: kills, lost jobs, most restarts that a kill used, median end of each phase,
    and p95 of the recovery.

    faults: what each of its kills cost.
    """
    after_s = median_phase_ends(faults)
    lost = sum(not fault.after_s for fault in faults)
    burned = max((fault.restarts_used for fault in faults), default=0)
    p95_s = nearest_rank([fault.took_s for fault in faults], 0.95)
    return (name, len(faults), lost, burned, *(after_s[phase] for phase in PHASES), p95_s)

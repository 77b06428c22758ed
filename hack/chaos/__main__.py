"""Run a job on the local cluster under faults: `python -m hack.chaos --seed N --faults K [--seeds M]`.

Prints what was done, the laws that were broken, a table of times, and one line of JSON. Where a law was broken the
history stays in the folder, with the logs of all agents. Exit code 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hack.chaos.downtime import figures, table
from hack.chaos.fault_schedule import Fault, FaultEvent, schedule
from hack.chaos.history import Record
from hack.chaos.runner import Outcome, run
from hack.chaos.testbed.manifests import COOLDOWN_S, LEASE_S, SHORT, Plan
from turnout.cli.commands.terminal import ended_by_sigterm


@dataclass(frozen=True, slots=True)
class Settings:
    """The faults to run. kinds: of faults, all if none is named; seeds: how many, from `seed` on."""

    seed: int = 1
    seeds: int = 1
    faults: int = 6
    kinds: tuple[Fault, ...] = tuple(Fault)
    folder: Path = Path("build/chaos")


def main(argv: Sequence[str] | None = None) -> int:
    """Play the schedules one after the other."""
    default = Settings()
    parser = argparse.ArgumentParser(
        prog="python -m hack.chaos", description="A training job on the local cluster under faults."
    )
    parser.add_argument("--seed", type=int, default=default.seed, help="of the first schedule (%(default)s)")
    parser.add_argument("--seeds", type=int, default=default.seeds, help="how many schedules (%(default)s)")
    parser.add_argument("--faults", type=int, default=default.faults, help="of each (%(default)s)")
    parser.add_argument("--kinds", type=_kinds, default=default.kinds, metavar="KIND,...", help=_named(tuple(Fault)))
    parser.add_argument("--folder", type=Path, default=default.folder, help="for histories (%(default)s)")
    settings = Settings(**vars(parser.parse_args(argv)))
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    outcomes = [_play(seed, settings) for seed in range(settings.seed, settings.seed + settings.seeds)]
    return _close(settings, outcomes)


def _play(seed: int, settings: Settings) -> Outcome:
    events = schedule(seed, settings.faults, settings.kinds)
    home = settings.folder.absolute() / f"seed-{seed}"
    shutil.rmtree(home, ignore_errors=True)
    outcome = asyncio.run(ended_by_sigterm(run(events, home, Plan.of(settings.faults))))
    print(f"seed {seed}: {len(events)} faults in {outcome.took_s:.0f} s")
    for line in _told(events, outcome):
        print(f"  {line}")
    for breach in outcome.breaches:
        print(f"  BROKEN: {breach}")
    if outcome.breaches:
        print(f"  its history and logs are in {home}")
    else:
        shutil.rmtree(home)
    sys.stdout.flush()
    return outcome


def _told(events: Sequence[FaultEvent], outcome: Outcome) -> list[str]:
    """Tell each fault, and the rounds that followed."""
    first_s, hurried = outcome.records[0].at_s, iter([*(event.hurried for event in events)])
    lines, rounds = list[str](), set[int]()
    for record in outcome.records:
        at = f"{record.at_s - first_s:7.2f} s  "
        if record.event == "fault":
            soon = ", at once" if next(hurried) else ""
            lines.append(f"{at}{Fault[record.kind].value}{soon}{'' if record.who else ' (nobody was there)'}")
        elif record.event == "begun" and record.round not in rounds:
            rounds.add(record.round)
            lines.append(f"{at}  round {record.round}: {record.world} go on from step {record.step} ({record.source})")
        elif record.event == "over":
            lines.append(f"{at}over: {record.why or 'completed'}")
    return lines


def _close(settings: Settings, outcomes: Sequence[Outcome]) -> int:
    rows = table([outcome.records for outcome in outcomes])
    print(f"\n{'':34}{'':30}{'times':>6}{'median s':>10}{'worst s':>9}")
    for row in sorted(rows, key=lambda row: (row.what, row.kind)):
        print(f"{row.kind:34}{row.what:30}{len(row.times_s):>6}{row.median_s:>10.2f}{row.worst_s:>9.2f}")
    beats = f"heartbeats {SHORT.heartbeat_s:g} s, silence {SHORT.silence_s:g} s"
    print(f"shortened: {beats}, the autoscaler's Lease {LEASE_S:g} s, its cooldown {COOLDOWN_S:g} s")
    broken = sum(len(outcome.breaches) for outcome in outcomes)
    struck = [record for outcome in outcomes for record in outcome.records if _struck(record)]
    last = {"seed": settings.seed, "seeds": settings.seeds, "faults": settings.faults, "struck": len(struck)}
    print(json.dumps({**last, "broken": broken, "took_s": round(sum(o.took_s for o in outcomes), 1), **figures(rows)}))
    return 1 if broken else 0


def _struck(record: Record) -> bool:
    return record.event == "fault" and bool(record.who)


def _kinds(text: str) -> tuple[Fault, ...]:
    try:
        return tuple(Fault[word.upper()] for word in text.split(","))
    except KeyError as error:
        raise argparse.ArgumentTypeError(f"{error} is none of {_named(tuple(Fault))}") from error


def _named(kinds: Sequence[Fault]) -> str:
    return ", ".join(kind.name.lower() for kind in kinds)


if __name__ == "__main__":
    sys.exit(main())

"""Strikes kinds of faults under seeds: `python -m hack.chaos --seed N --seeds M --faults K`.

A training job on the local cluster meets K faults of a schedule; each other kind has a scenario. Prints what was done,
a table of fault kinds, seeds and invariants, and one line of JSON. Exit code 1 where an invariant was
violated, or a kind that was asked for never struck; the history stays in the folder then.
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

from hack.chaos import job_strikes, strike_table
from hack.chaos.fault_kinds import OF_JOB, TITLES, Kind
from hack.chaos.fault_schedule import Fault, FaultEvent, schedule
from hack.chaos.runner import ChaosOutcome, run
from hack.chaos.scenarios import registry
from hack.chaos.strike_table import Strike
from hack.chaos.testbed.manifests import Plan
from hack.chaos.testbed.testbed import NoIsolation
from turnout.cli.verb_support.terminal import cancel_on_sigterm

_JOB = "job"  # all faults of the training job


@dataclass(frozen=True, slots=True)
class FaultSelection:
    """The faults that are asked for."""

    kinds: tuple[Kind, ...] = tuple(Kind)  # whose scenarios run
    faults: tuple[Fault, ...] = tuple(Fault)  # that may hit the training job
    named: tuple[Fault, ...] = ()  # that the command line names: each of them has to hit it

    @classmethod
    def parse(cls, words: Sequence[str]) -> FaultSelection:
        """Parse the words of --kinds: numbers or names of kinds, and names of faults, in lower case.

        Raises KeyError for an unknown name, and ValueError for an unknown number.
        """
        kinds = [Kind(int(word)) if word.isdecimal() else Kind[word.upper()] for word in words if _is_kind(word)]
        named = [Fault[word.upper()] for word in words if not _is_kind(word) and word != _JOB]
        by_job = [fault for fault, kind in OF_JOB.items() if kind in kinds and kind not in registry.SCENARIOS]
        wide = tuple(Fault) if _JOB in words else ()
        return cls(tuple(kinds), tuple(dict.fromkeys((*named, *by_job, *wide))), tuple(named))


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the command line."""

    seed: int = 1  # the first one
    seeds: int = 1  # number of seeds, from `seed` on
    faults: int = 6  # number of faults in the training job, for each seed
    kinds: FaultSelection = FaultSelection()
    folder: Path = Path("build/chaos")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the schedule of each seed and the scenarios, and print the results. Return the exit code.

    It is 1 if an invariant is violated, a scenario fails, or a requested kind or fault never struck; else 0. argv: None
    for that of this process.
    """
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m hack.chaos", description="Strike kinds of faults, by seeds.")
    parser.add_argument("--seed", type=int, default=default.seed, help="of the first schedule (%(default)s)")
    parser.add_argument("--seeds", type=int, default=default.seeds, help="how many schedules (%(default)s)")
    parser.add_argument("--faults", type=int, default=default.faults, help="of the training job, each (%(default)s)")
    parser.add_argument("--kinds", type=_parse_kinds, default=default.kinds, metavar="KIND,...", help=_kinds_help())
    parser.add_argument("--folder", type=Path, default=default.folder, help="for histories (%(default)s)")
    settings = Settings(**vars(parser.parse_args(argv)))
    logging.getLogger("turnout.simulator").setLevel(logging.ERROR)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    job = settings.kinds.faults and settings.faults > 0
    try:
        outcomes = {seed: _play(seed, settings) for seed in seeds} if job else {}
    except NoIsolation as error:
        print(f"hack.chaos: {error}", file=sys.stderr)
        return 1
    logging.getLogger("turnout").setLevel(logging.CRITICAL)  # scenarios break things that programs would complain of
    scenarios = [_scenarios(seed, settings) for seed in seeds]
    strikes = [each for found, _ in scenarios for each in found]
    failed = [line for _, lines in scenarios for line in lines]
    strikes += [
        each for seed, found in outcomes.items() for each in job_strikes.strikes(seed, found.records, found.violations)
    ]
    return max(_close(settings, tuple(outcomes.values()), strikes), int(bool(failed)))


def _scenarios(seed: int, settings: Settings) -> tuple[list[Strike], list[str]]:
    """Run the scenarios of one seed and print each result. Return (strikes, a line for each failed scenario).

    settings: which kinds, and the folder for files.
    """
    found, failed = registry.play(seed, settings.folder.absolute(), settings.kinds.kinds)
    for each in found:
        print(f"seed {seed}: {TITLES[each.kind]}: struck {each.times} times{each.detail and ': '}{each.detail}")
    for line in failed:
        print(f"FAILED: {line}")
    sys.stdout.flush()
    return found, failed


def _play(seed: int, settings: Settings) -> ChaosOutcome:
    """Run the schedule of one seed on the simulated cluster; print its faults and violated invariants; return the
    outcome.

    The seed's folder is deleted unless an invariant was violated. settings: how many faults and of which kinds, and the
    folder for files.
    """
    events = schedule(seed, settings.faults, settings.kinds.faults)
    home = settings.folder.absolute() / f"seed-{seed}"
    shutil.rmtree(home, ignore_errors=True)
    outcome = asyncio.run(cancel_on_sigterm(run(events, home, Plan.of(settings.faults))))
    print(f"seed {seed}: {len(events)} faults in {outcome.took_s:.0f} s")
    for line in _event_lines(events, outcome):
        print(f"  {line}")
    for violation in outcome.violations:
        print(f"  BROKEN: {violation}")
    if outcome.violations:
        print(f"  its history and logs are in {home}")
    else:
        shutil.rmtree(home)
    sys.stdout.flush()
    return outcome


def _event_lines(events: Sequence[FaultEvent], outcome: ChaosOutcome) -> list[str]:
    """Return lines of text: each fault, each new round and the end, with the seconds since the start.

    events: the schedule, in order.
    """
    first_s, during_recovery = outcome.records[0].at_s, iter([*(event.during_recovery for event in events)])
    lines, rounds = list[str](), set[int]()
    for record in outcome.records:
        at = f"{record.at_s - first_s:7.2f} s  "
        if record.event == "fault":
            soon = ", at once" if next(during_recovery) else ""
            lines.append(f"{at}{Fault[record.kind].value}{soon}{'' if record.who else ' (nobody was there)'}")
        elif record.event == "begun" and record.round not in rounds:
            rounds.add(record.round)
            lines.append(f"{at}  round {record.round}: {record.world} go on from step {record.step} ({record.source})")
        elif record.event == "over":
            lines.append(f"{at}over: {record.why or 'completed'}")
    return lines


def _close(settings: Settings, outcomes: Sequence[ChaosOutcome], strikes: Sequence[Strike]) -> int:
    """Print the table of strikes, the named faults that hit nothing, and a summary as JSON.

    Returns the exit code: 1 if a named fault hit nothing, else that of the strikes. outcomes: of the training jobs.
    strikes: of all scenarios and jobs.
    """
    records = [record for outcome in outcomes for record in outcome.records]
    requested = {*settings.kinds.kinds, *(kind for fault, kind in OF_JOB.items() if fault in settings.kinds.named)}
    requested |= {each.kind for each in strikes}
    print("", *strike_table.table(requested, strikes), sep="\n")
    missed = job_strikes.faults_without_hit(settings.kinds.named, records)
    print(*(f"NEVER STRUCK: {fault.value}" for fault in missed), sep="\n", end="\n" if missed else "")
    struck = sum(bool(record.who) for record in records if record.event == "fault")
    broken = len(strike_table.violations(strikes))
    never = [kind.name.lower() for kind in strike_table.kinds_without_strike(requested, strikes)]
    last = {"seed": settings.seed, "seeds": settings.seeds, "faults": settings.faults, "struck": struck}
    kinds = {"kinds_struck": len({each.kind for each in strikes if each.times}), "never_struck": never}
    print(json.dumps({**last, **kinds, "broken": broken, "took_s": round(sum(o.took_s for o in outcomes), 1)}))
    return 1 if missed else strike_table.code(requested, strikes)


def _is_kind(word: str) -> bool:
    """Return True if the word is the number or the name of a kind."""
    return word.isdecimal() or word.upper() in Kind.__members__


def _parse_kinds(text: str) -> FaultSelection:
    """Parse the value of --kinds, in any case. Raises ArgumentTypeError for a word that is no kind and no fault."""
    try:
        return FaultSelection.parse(text.lower().split(","))
    except (KeyError, ValueError) as error:
        raise argparse.ArgumentTypeError(f"{error} is none of {_kinds_help()}") from error


def _kinds_help() -> str:
    """Return the help text that lists all kinds and faults."""
    kinds = ", ".join(f"{kind.value} {kind.name.lower()}" for kind in Kind)
    faults = ", ".join(fault.name.lower() for fault in Fault)
    return f"kinds by number or name: {kinds}; faults of the training job: {faults}, or {_JOB} for all of these"


if __name__ == "__main__":
    sys.exit(main())

"""Which scenario strikes which kinds, and how each is run."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hack.chaos.chart import upgrades
from hack.chaos.fault_kinds import Kind
from hack.chaos.scenarios import arbiter_cut, partition
from hack.chaos.strike_table import Strike
from hack.chaos.testbed.testbed import NoProgress
from hack.controlplane.errors import ControlPlaneError
from turnout.cli.verb_support.child_programs import ChildFailed
from turnout.simulator.cluster.runtime.clients import ApiError

Play = Callable[[int, Path], Sequence[Strike]]

# What a scenario may end with when it cannot run here, or never comes to its end: its kinds have not struck then.
_FAILURES = (
    *(OSError, subprocess.SubprocessError, TimeoutError, NoProgress, ChildFailed, ExceptionGroup),
    *(ControlPlaneError, ApiError),
)


def _partition(seed: int, folder: Path) -> Sequence[Strike]:
    return [partition.play(seed, folder / "agents"), asyncio.run(arbiter_cut.play(seed, folder / "arbiter"))]


def _chart(seed: int, folder: Path) -> Sequence[Strike]:
    return [upgrades.play(seed, folder / "training")]


SCENARIOS: Mapping[Kind, tuple[str, Play]] = {
    Kind.PARTITION: ("partition", _partition),
    Kind.UPGRADE: ("chart", _chart),
}


def play(seed: int, folder: Path, kinds: Sequence[Kind]) -> tuple[list[Strike], list[str]]:
    """Run the scenarios of these kinds under one seed. Kinds without a scenario are skipped.

    folder: for files, which stay where an invariant was violated. Returns the strikes, and a line for each scenario
    that could not run here or did not finish.
    """
    found, failed = list[Strike](), list[str]()
    for name, scenario in (SCENARIOS[kind] for kind in kinds if kind in SCENARIOS):
        home = folder / f"{name}-{seed}"
        shutil.rmtree(home, ignore_errors=True)
        try:
            strikes = scenario(seed, home)
        except _FAILURES as error:
            failed.append(f"{name}, seed {seed}: {_error_text(error)}; see {home}")
            continue
        found += strikes
        if not any(check.violations for strike in strikes for check in strike.checks):
            shutil.rmtree(home, ignore_errors=True)
    return found, failed


def _error_text(error: BaseException) -> str:
    """Return an exception as text: the first one of a group, and the places where it was raised, innermost first."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    at = traceback.extract_tb(error.__traceback__)
    place = " in ".join(f"{each.name}, line {each.lineno}" for each in reversed(at) if "chaos" in each.filename)
    return f"{type(error).__name__}: {error} in {place}"

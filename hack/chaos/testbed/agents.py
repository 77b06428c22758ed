"""Three agents of a job that trains nothing, so that a job takes a second: their records, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from hack.chaos.history import Record, read
from hack.chaos.strike_table import Check
from hack.chaos.testbed.manifests import ROOT
from turnout.cli.verb_support.child_programs import child_environment, die_with_parent

WORKERS, MIN_WORKERS = 3, 2
SILENCE_S, GOES_ON_S = 1.0, 15.0  # without a heartbeat; until those who reach each other train again
ENDS = "the job comes to its end on every worker"
_SCRIPT = Path(__file__).with_name("step_script.py")
_LOOK_S = 0.1


class Job:
    """Three agents of one job, each on its own host. endpoint: of the first coordinator."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self._endpoint = folder, endpoint
        for name in ("history", "logs", "memory"):
            (folder / name).mkdir(parents=True)
        (folder / "token").write_text("a token of these hosts")
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, at: int, prefix: Sequence[str] = (), options: Sequence[str] = (), **env: str) -> None:
        """Start agent number `at`, once. prefix: words before its command. options: further flags. env: further
        variables.

        Its log is in logs/wN.log of the job's folder. The agent is killed if this process ends.
        """
        memory = self.folder / "memory" / f"w{at}"
        memory.mkdir()
        command = [
            *(*prefix, sys.executable, "-m", "turnout.launcher", "--log-format=json", "--no-fork", f"--name=w{at}"),
            *(f"--nnodes={MIN_WORKERS}:{WORKERS}", f"--rdzv-endpoint={self._endpoint}", "--last-call-s=1"),
            *("--heartbeat-s=0.2", f"--silence-s={SILENCE_S:g}", f"--token-file={self.folder / 'token'}"),
            *(*options, str(_SCRIPT), str(self.folder)),
        ]
        own = {**child_environment(), "TURNOUT_MEMORY_DIR": str(memory), "PYTHONPATH": str(ROOT), **env}
        with (self.folder / "logs" / f"w{at}.log").open("wb") as log:
            self.agents.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=own,
                    start_new_session=True,
                    preexec_fn=die_with_parent,
                )
            )

    def records(self) -> list[Record]:
        """Return all records that the training processes have written so far."""
        return [record for path in sorted((self.folder / "history").iterdir()) for record in read(path.read_text())]

    def trains(self, world: int, since_s: float) -> bool:
        """Return True if a round with `world` ranks began after `since_s` (monotonic seconds) and made a step."""
        records = self.records()
        rounds = {record.round for record in records if record.event == "begun" and record.world == world}
        rounds &= {record.round for record in records if record.event == "begun" and record.at_s > since_s}
        steps = whole_steps(records)
        return any(step_s > since_s for round_ in rounds for step_s in steps.get(round_, ()))

    def processes(self) -> list[int]:
        """Return the pids of the training processes that are alive."""
        return [pid for pid in sorted({record.pid for record in self.records()}) if self._is_ours(pid)]

    def finish(self) -> Check:
        """Tell the training to end, wait GOES_ON_S for each agent, and return the check that all ended with 0."""
        (self.folder / "finish").touch()
        codes = [_code(agent) for agent in self.agents]
        return Check(ENDS, (f"agents ended with {codes}",) if any(codes) else ())

    def end(self) -> None:
        """Kill all agents and their training processes."""
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_ours(self, pid: int) -> bool:
        """Return True if the job's folder stands in the command line of the process `pid`; False if it has ended."""
        try:
            return os.fsencode(self.folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


def whole_steps(records: Iterable[Record]) -> dict[int, list[float]]:
    """Return, for each round, the times of its complete steps by ascending step: when all ranks had recorded the step.

    Steps that some rank of the world did not record are omitted, and rounds without a complete step.
    """
    noted: defaultdict[tuple[int, int], dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.event == "stepped":
            noted[record.round, record.step][record.rank] = record
    found: defaultdict[int, list[float]] = defaultdict(list)
    for (round_, _), ranks in sorted(noted.items()):
        if len(ranks) == next(iter(ranks.values())).world:
            found[round_].append(max(record.at_s for record in ranks.values()))
    return dict(found)


def split_worlds(records: Iterable[Record]) -> list[str]:
    """Return a text for each round that completed a step after the next round's first complete step; [] if none did.

    Only steps that all ranks have recorded count, and only rounds with such a step. records: of all processes.
    """
    by_step = sorted(whole_steps(records).items())
    return [
        f"round {before} made a step {max(steps) - min(later):.3f} s after the first of {after}"
        for (before, steps), (after, later) in pairwise(by_step)
        if max(steps) > min(later)
    ]


def until(so: Callable[[], bool], patience_s: float) -> bool:
    """Call `so` until it returns True, at most `patience_s` seconds. Return its last result."""
    end_s = time.monotonic() + patience_s
    while not (found := so()) and time.monotonic() < end_s:
        time.sleep(_LOOK_S)
    return found


def _code(agent: subprocess.Popen[bytes]) -> int:
    """Return an agent's exit code; -1 if it still runs after GOES_ON_S."""
    try:
        return agent.wait(GOES_ON_S)
    except subprocess.TimeoutExpired:
        return -1

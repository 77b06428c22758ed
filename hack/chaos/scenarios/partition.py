"""Cuts between the agents of a job, kind 14: real agents in network namespaces, packets lost one way or both.

A cut takes one of three workers from the others: what it sends is lost, or what they send to it, or both. Nobody is
told; connections stay. Needs root and `ip`.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from hack.chaos.fault_kinds import Kind
from hack.chaos.history import Record, read
from hack.chaos.strike_table import Check, Strike
from hack.chaos.testbed.hosts import Hosts
from hack.chaos.testbed.manifests import ROOT
from turnout.cli.commands.child_programs import child_environment, die_with_parent

WORKERS, LEAST = 3, 2
SILENCE_S, GOES_ON_S = 1.0, 15.0  # without a heartbeat; until those who reach each other train again
BACK_S, MADE_S = 120.0, 40.0  # until all train together again; until the first world trains
WAYS = ("what it sends is lost", "what is sent to it is lost", "both are lost")
_SCRIPT = Path(__file__).with_name("step_script.py")
_PORT = 29400
_LOOK_S = 0.02

APART = "two worlds never train at once"
GOES_ON = "those who reach each other train on"
STOPS = "who is cut off stops to train within its silence limit"
TOGETHER = "once the cut is mended, all train in one world"
ENDS = "the job comes to its end on every worker"


class Job:
    """Three agents, each in its place. endpoint: of the first coordinator."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self._endpoint = folder, endpoint
        for name in ("history", "logs", "memory"):
            (folder / name).mkdir(parents=True)
        (folder / "token").write_text("a token of these hosts")
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self, at: int, prefix: Sequence[str] = (), options: Sequence[str] = (), **env: str) -> None:
        """Start an agent. prefix: what stands before its command. options, env: further ones of its own."""
        memory = self.folder / "memory" / f"w{at}"
        memory.mkdir()
        command = [
            *prefix,
            sys.executable,
            "-m",
            "turnout.launcher",
            "--log-format=json",
            "--no-fork",
            f"--nnodes={LEAST}:{WORKERS}",
            "--heartbeat-s=0.2",
            f"--silence-s={SILENCE_S:g}",
            "--last-call-s=1",
            "--token-file",
            str(self.folder / "token"),
            "--rdzv-endpoint",
            self._endpoint,
            "--name",
            f"w{at}",
            *options,
            str(_SCRIPT),
            str(self.folder),
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
        """Read the history."""
        return [record for path in sorted((self.folder / "history").iterdir()) for record in read(path.read_text())]

    def trains(self, world: int, since_s: float) -> bool:
        """True if a world of that size has begun and made a step since then."""
        records = self.records()
        rounds = {record.round for record in records if record.event == "begun" and record.world == world}
        rounds &= {record.round for record in records if record.event == "begun" and record.at_s > since_s}
        made = whole_steps(records)
        return any(step_s > since_s for round_ in rounds for step_s in made.get(round_, ()))

    def processes(self) -> list[int]:
        """The training processes that live."""
        return [pid for pid in sorted({record.pid for record in self.records()}) if self._is_ours(pid)]

    def finish(self) -> Check:
        """Let the training end, and check how the agents do."""
        (self.folder / "finish").touch()
        codes = [_code(agent) for agent in self.agents]
        return Check(ENDS, () if codes == [0] * WORKERS else (f"agents ended with {codes}",))

    def end(self) -> None:
        """Leave nothing behind."""
        for agent in self.agents:
            if agent.poll() is None:
                os.killpg(agent.pid, signal.SIGKILL)
            agent.wait()
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _is_ours(self, pid: int) -> bool:
        try:
            return os.fsencode(self.folder) in Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            return False


def play(seed: int, folder: Path) -> Strike:
    """Cut one of three workers off, and mend it, which all train together again after at most two minutes."""
    dice = random.Random(f"partition/{seed}")
    at, way = dice.randint(1, WORKERS), WAYS[seed % len(WAYS)]
    net = Hosts(WORKERS)
    try:
        job = Job(folder, f"{net.address(1)}:{_PORT}")
        try:
            times, checks = _story(job, net, at, way)
        finally:
            job.end()
    finally:
        net.end()
    return Strike(Kind.PARTITION, seed, times, checks, f"worker {at} of {WORKERS}: {way}")


def _story(job: Job, net: Hosts, at: int, way: str) -> tuple[int, tuple[Check, ...]]:
    for host in range(1, WORKERS + 1):
        job.start(host, net.inside(host))
    if not until(lambda: job.trains(WORKERS, 0.0), MADE_S):
        return 0, (Check(GOES_ON, (f"no world of {WORKERS} within {MADE_S:g} s",)),)
    cut_s = time.monotonic()
    _cut(net, at, way)
    alone = [] if until(lambda: job.trains(WORKERS - 1, cut_s), GOES_ON_S) else [f"not within {GOES_ON_S:g} s"]
    time.sleep(SILENCE_S)
    last_s = _last(job, at, cut_s)
    late = [f"it made a step {last_s:.1f} s after the cut"] if last_s > 3 * SILENCE_S else []
    mended_s = time.monotonic()
    _mend(net, at, way)
    found = until(lambda: job.trains(WORKERS, mended_s), BACK_S)
    ended = job.finish()
    return 1, (
        Check(APART, tuple(apart(job.records()))),
        Check(GOES_ON, tuple(alone)),
        Check(STOPS, tuple(late)),
        Check(TOGETHER, () if found else (f"not within {BACK_S:g} s",)),
        ended,
    )


def _cut(net: Hosts, at: int, way: str) -> None:
    for other in (host for host in range(1, WORKERS + 1) if host != at):
        if way != WAYS[1]:
            net.deafen(at, other)
        if way != WAYS[0]:
            net.deafen(other, at)


def _mend(net: Hosts, at: int, way: str) -> None:
    for other in (host for host in range(1, WORKERS + 1) if host != at):
        if way != WAYS[1]:
            net.hear(at, other)
        if way != WAYS[0]:
            net.hear(other, at)


def whole_steps(records: Iterable[Record]) -> dict[int, list[float]]:
    """Say when each round made its steps: a step is made once all ranks of its world have noted it."""
    noted: defaultdict[tuple[int, int], dict[int, Record]] = defaultdict(dict)
    for record in records:
        if record.event == "stepped":
            noted[record.round, record.step][record.rank] = record
    found: defaultdict[int, list[float]] = defaultdict(list)
    for (round_, _), ranks in sorted(noted.items()):
        if len(ranks) == next(iter(ranks.values())).world:
            found[round_].append(max(record.at_s for record in ranks.values()))
    return dict(found)


def apart(records: Iterable[Record]) -> list[str]:
    """Tell each pair of rounds that made steps at the same time."""
    made = sorted(whole_steps(records).items())
    return [
        f"round {before} made a step {max(steps) - min(later):.3f} s after the first of {after}"
        for (before, steps), (after, later) in pairwise(made)
        if max(steps) > min(later)
    ]


def _last(job: Job, at: int, cut_s: float) -> float:
    """Say how long after the cut the world before it still had a process on that host."""
    records = [record for record in job.records() if record.worker.partition("/")[0] == f"w{at}"]
    old = min((record.round for record in records), default=0)
    return max((record.at_s - cut_s for record in records if record.round == old), default=0.0)


def until(so: Callable[[], bool], patience_s: float) -> bool:
    """Wait until something is so. Returns whether it is."""
    end_s = time.monotonic() + patience_s
    while not (found := so()) and time.monotonic() < end_s:
        time.sleep(_LOOK_S * 5)
    return found


def _code(agent: subprocess.Popen[bytes]) -> int:
    try:
        return agent.wait(GOES_ON_S)
    except subprocess.TimeoutExpired:
        return -1

"""Real agents for tests: each a process of its own, its log read as JSON, and everything ended with the test.

What trains is a script that notes when it began and when it was last alive, so that a test can tell afterwards
whether two worlds ever trained at once. Nothing here sleeps: a wait looks until it has seen what it waits for.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from tests.kit.wait import until

SECONDS = 40.0  # no wait of a test is longer
TOY = Path(__file__).with_name("scripts") / "toy.py"
_LOOK = threading.Event()  # never set: what a wait waits for between two looks

QUICK = ("--no-fork", "--heartbeat-s", "0.2", "--silence-s", "1")
ENV = {key: value for key, value in os.environ.items() if key in ("PATH", "HOME", "LANG", "TMPDIR")}
RUN = (sys.executable, "-m", "turnout.launcher", "--log-format", "json")


def lines(job, file: str) -> list[dict]:
    """Lines of JSON in this file of the job's folder; none while it is not there."""
    path = job.folder / file
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def running(pid: int) -> bool:
    """True if there is such a process and it has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def command_of(pid: int) -> str:
    """Its command line, "" where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stat_of(pid: int) -> list[str]:
    """Its state, parent and what follows in /proc, empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def family(pid: int) -> str:
    """Tell the process and all that descend from it: number, state and command of each, a line each."""
    parents = {each: stat_of(each)[1:2] for each in (int(path.name) for path in Path("/proc").glob("[0-9]*"))}
    found = [pid]
    for each in found:
        found += [child for child, parent in parents.items() if parent == [str(each)]]
    return "\n".join(f"{each} {''.join(stat_of(each)[:1])} {command_of(each)[:200]}" for each in found)


def pids_of(word: str) -> list[int]:
    """The processes with this in their command line."""
    pids = (int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal())
    return [pid for pid in pids if word in command_of(pid)]


@dataclass(frozen=True)
class JobLifecycle:
    """One training process: what it found in its environment, and when it was there, by the machine's one clock."""

    name: str
    round: int
    rank: int
    world: int
    pid: int
    began_s: float
    alive_s: float
    restarts: int
    env: dict


class Agent:
    """One agent. events: what it has logged so far, in order."""

    def __init__(self, name: str, argv, folder: Path, number: int, env, **more) -> None:
        self.name, self.log, self.out = name, folder / f"{name}.{number}.log", folder / f"{name}.{number}.out"
        with self.log.open("wb") as log, self.out.open("wb") as out:
            self.process = subprocess.Popen(
                ("setpriv", "--pdeathsig", "KILL", *argv),
                stdin=subprocess.DEVNULL, stdout=out, stderr=log, env=env, start_new_session=True, **more,
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def events(self) -> list[dict]:
        lines = self.log.read_text(errors="replace").splitlines()
        # Its processes write to the same stderr, a traceback in pieces: an event may begin in the middle of a line.
        events = (line[line.index('{"time"') :] for line in lines if '{"time"' in line and line.endswith("}"))
        return [json.loads(event) for event in events]

    def entries(self, event: str) -> list[dict]:
        return [each for each in self.events if each["event"] == event]

    def until(self, event: str, seconds=SECONDS, **fields) -> dict:
        """The first line of the log with this event and these fields."""

        def look():
            return next((each for each in self.entries(event) if fields.items() <= each.items()), None)

        return until(look, lambda: f"{self.name} says {event} {fields}\n{self.log.read_text()}", seconds)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, without a last word."""
        self.process.kill()

    def code(self, seconds=SECONDS) -> int:
        """Its exit code, once it has ended."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            left = family(self.pid)
            raise AssertionError(f"{self.name} has not ended\n{left}\n{self.log.read_text()}") from None

    @property
    def leads(self) -> bool:
        """True if this agent coordinates, as far as it has said."""
        return bool(self.entries("coordinator_begun"))


# Below the ports that the kernel gives to outgoing connections (32768 and above): between the end of a coordinator and
# the start of the next one at the same address, any connection of this machine could take such a port.
ENDPOINT_PORTS = range(20_000, 30_000)


def endpoint_port(address: str) -> int:
    """A port of an endpoint on which nobody listens, and which no outgoing connection takes later."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for _ in ENDPOINT_PORTS:
        port = random.choice(ENDPOINT_PORTS)
        with socket.socket(family) as probe, contextlib.suppress(OSError):
            probe.bind((address, port))
            return port
    raise AssertionError(f"no free port in {ENDPOINT_PORTS}")


class Crew:
    """The agents of one job. nnodes: as the option; more: further options of all of them."""

    def __init__(self, folder: Path, nnodes="1:4", *more: str, script=TOY, at="127.0.0.1", quick=QUICK) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.script, self._numbers = folder, script, count()
        self.lives_in, self.finish_file = folder / "lives", folder / "finish"
        self.lives_in.mkdir()
        self.memory = Path(tempfile.mkdtemp(prefix="crew-", dir="/dev/shm"))  # a folder of each agent in it
        self.port = endpoint_port(at)
        self.options = ("--nnodes", nnodes, *quick, *more)
        self.endpoint = ("--rdzv-endpoint", f"{at}:{self.port}")
        self.agents: list[Agent] = []

    def start(self, name: str, *more: str, argv=None, env=None, prefix=(), arguments=(), **popen) -> Agent:
        """Start one agent. argv: the whole command line, where it is not the usual one."""
        command = argv or (
            *RUN, *self.options, *self.endpoint, "--name", name, *more, str(self.script), str(self.folder), *arguments
        )  # fmt: skip
        own = {"CREW_NAME": name, "TURNOUT_MEMORY_DIR": str(self.memory_of(name))}
        number = next(self._numbers)
        agent = Agent(name, (*prefix, *command), self.folder, number, ENV | own | (env or {}), **popen)
        self.agents.append(agent)
        return agent

    def memory_of(self, name: str) -> Path:
        """Give the folder of this agent's memory, the same in every life of it."""
        folder = self.memory / name
        folder.mkdir(exist_ok=True)
        return folder

    def daemons(self) -> list[int]:
        """Those that live, of all agents: they end later than an agent that was killed."""
        return [pid for pid in pids_of("turnout.launcher.checkpoint.daemon") if str(self.memory) in command_of(pid)]

    def gather(self, size: int) -> list[Agent]:
        """Start this many, the first as the coordinator, and wait for the world of all of them."""
        agents = [self.start("w0")]
        agents[0].until("coordinator_begun")
        agents += [self.start(f"w{at}") for at in range(1, size)]
        self.world(size)
        return agents

    def lives(self) -> list[JobLifecycle]:
        found = []
        for path in sorted(self.lives_in.glob("*.json")):
            with contextlib.suppress(FileNotFoundError, ValueError):  # it is being written just now
                alive_s = float(path.with_suffix(".alive").read_text() or 0)
                found.append(JobLifecycle(**json.loads(path.read_text()), alive_s=alive_s))
        return sorted(found, key=lambda life: life.began_s)

    def worlds(self) -> dict[int, list[JobLifecycle]]:
        """Give who trained, by round, in the order of ranks."""
        rounds = defaultdict(list)
        for life in self.lives():
            rounds[life.round].append(life)
        return {round_: sorted(lives, key=lambda life: life.rank) for round_, lives in sorted(rounds.items())}

    def world(self, size: int, after: int = 0, seconds=SECONDS) -> list[JobLifecycle]:
        """The first world after that round with so many ranks of which every one has begun."""

        def look():
            complete = [lives for round_, lives in self.worlds().items() if round_ > after]
            return next((lives for lives in complete if [life.rank for life in lives] == list(range(size))
                         and all(life.world == size for life in lives)), None)  # fmt: skip

        return until(look, lambda: f"a world of {size} after round {after}\n{self.log_text()}", seconds)

    def log_text(self) -> str:
        """Everything that was logged, for a test that fails."""
        lives = "\n".join(
            f"{life.name} round {life.round} rank {life.rank}/{life.world} {life.began_s:.3f}..{life.alive_s:.3f}"
            for life in self.lives()
        )
        return lives + "".join(
            f"\n--- {each.name} ({each.process.poll()})\n{each.log.read_text()}" for each in self.agents
        )

    def finish(self) -> None:
        """Have the training end well."""
        self.finish_file.touch()

    def codes(self, *agents: Agent) -> list[int]:
        """The exit codes of these, else of all."""
        try:
            return [agent.code() for agent in agents or self.agents]
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log_text()}") from None

    def check_one_world(self, over=max) -> None:
        """No two rounds ever trained at once, and no rank was given twice in one round.

        over: when a world is over: with its last process. With `min` already with its first: the others wait for that
        one for ever. More cannot be had of a host that is cut off, which notices no sooner than those who are not.
        """
        last = None
        for round_, lives in self.worlds().items():
            ranks = [life.rank for life in lives]
            assert len(ranks) == len(set(ranks)), f"round {round_} has ranks {ranks}\n{self.log_text()}"
            assert len({life.world for life in lives}) == 1, self.log_text()
            began_s = min(life.began_s for life in lives)
            assert last is None or last[1] <= began_s, f"rounds {last[0]} and {round_} overlap\n{self.log_text()}"
            last = (round_, over(life.alive_s for life in lives))

    def end(self) -> None:
        """Nothing of it is left."""
        for agent in self.agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
            agent.process.wait(SECONDS)
        pids = [life.pid for life in self.lives() if "pid_namespace" not in life.env]
        until(lambda: not any(map(running, pids)), "processes end with their agents", 5)
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        until(lambda: not self.daemons(), "daemons end when they are killed", 5)
        shutil.rmtree(self.memory)

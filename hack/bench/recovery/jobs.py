"""Jobs of two training processes, of which parts are killed, and the time until they step again.

A job is one or two agents of some launcher. The state lies in memory; what a launcher prints tells when it noticed.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from hack.bench.recovery import worker
from hack.bench.recovery.phase_times import LOST, KillResult, PhaseMark, first_steps, kill_result
from hack.bench.rendezvous import mount_namespace
from hack.bench.rendezvous.mount_namespace import NameSource
from turnout.cli.verb_support.child_programs import free_port

RANKS = 2
RESTARTS = 3
LOOK_S = 0.005
START_S = 60.0
WORKER = ["-m", "hack.bench.recovery.worker"]


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher, and how it starts the agents of a job.

    agents(port, folder): the command of each, without the worker's words; the folder is one that they share.
    """

    name: str
    agents: Callable[[int, str], Sequence[Sequence[str]]]
    env: Mapping[str, str] = field(default_factory=dict)


def torchrun(*options: str) -> list[str]:
    """Return the command of an agent of torch, without the training script. options: further ones."""
    common = [f"--max-restarts={RESTARTS}", "--local-addr=127.0.0.1"]
    return [sys.executable, "-m", "torch.distributed.run", *common, *options]


def turnout(*options: str) -> list[str]:
    """Return the command of an agent of ours, without the training script. options: further ones."""
    return [sys.executable, "-m", "turnout.launcher", f"--max-restarts={RESTARTS}", "--local-addr=127.0.0.1", *options]


def _agent_commands(nnodes: str, port: int, folder: str) -> list[list[str]]:
    """Return the command lines of two agents of one job on this machine, one process each.

    They meet by c10d at 127.0.0.1:port. nnodes: MIN:MAX as for torchrun. folder: for --round-dir.
    """
    at = [
        f"--round-dir={folder}",
        "--nproc-per-node=1",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port}",
        "--rdzv-id=bench",
    ]
    return [turnout(f"--nnodes={nnodes}", *at, f"--node-rank={rank}") for rank in range(2)]


def _torch_command(nnodes: str, port: int) -> list[str]:
    """Return the command line of one of torch's agents, which meets the others by c10d at 127.0.0.1:port."""
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=bench"]
    return torchrun(f"--nnodes={nnodes}", "--nproc-per-node=1", *meeting)


# As shipped, torch 2.15 keeps one store over all restarts: processes read the addresses of the dead there, which burns
# restarts or hangs for good. With a store for each restart it is at its best, and that is what ours is held against.
OWN_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}

TORCH_SHIPPED = Launcher(
    "torchrun as shipped", lambda port, folder: [torchrun("--standalone", f"--nproc-per-node={RANKS}")]
)
TORCH = Launcher("torchrun at its best", TORCH_SHIPPED.agents, OWN_STORE)
TORCH_TWO = Launcher("torchrun, 2 agents", lambda port, folder: [_torch_command("2", port)] * 2, OWN_STORE)
OURS = Launcher("turnout-run", lambda port, folder: [turnout("--standalone", f"--nproc-per-node={RANKS}")])
OURS_TWO = Launcher("turnout-run, 2 agents", lambda port, folder: _agent_commands("2", port, folder))
OURS_SHRINKS = Launcher("turnout-run, --nnodes=1:2", lambda port, folder: _agent_commands("1:2", port, folder))
TORCH_SHRINKS = Launcher("torchrun, --nnodes=1:2", lambda port, folder: [_torch_command("1:2", port)] * 2, OWN_STORE)


class BenchmarkJob:
    """A running job. Use it in a `with` block, which ends all of its processes."""

    def __init__(self, launcher: Launcher, names: NameSource, folder: Path) -> None:
        self._launcher, self._names, self._folder = launcher, names, folder
        self._ends = ExitStack()
        self._agents: list[subprocess.Popen[str]] = []
        self._printed_s: list[float] = []

    def __enter__(self) -> Self:
        """Start the agents one after the other: the first one hosts the rendezvous."""
        memory = tempfile.mkdtemp(prefix="turnout-bench-", dir="/dev/shm")
        self._ends.callback(shutil.rmtree, memory, ignore_errors=True)
        self._memory = Path(memory)
        (self._memory / worker.STATE).write_bytes(os.urandom(1 << 20) * (worker.STATE_BYTES >> 20))
        env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), "GLOO_SOCKET_IFNAME": "lo"}
        env |= {"PYTHONUNBUFFERED": "1", **self._launcher.env}
        port = free_port()
        for at, words in enumerate(self._launcher.agents(port, memory)):
            if at:
                wait_until_listening(port)
            command = mount_namespace.command([*words, *WORKER, memory], self._names, self._folder)
            agent = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            self._ends.callback(_end_agent, agent)
            self._agents.append(agent)
            threading.Thread(target=self._listen, args=(agent,), daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """End the agents, then kill the training processes that they left, and remove the memory folder."""
        left = self._start_times()
        self._ends.close()
        for pid, began in left.items():
            if worker.start_time(pid) == began:
                os.kill(pid, signal.SIGKILL)

    def marks(self) -> list[PhaseMark]:
        """Return all marks that the processes have written so far. An unfinished line is left out."""
        texts = [path.read_text() for path in self._memory.glob("marks-*")]
        return [
            PhaseMark.read(line) for text in texts for line in text.splitlines(keepends=True) if line.endswith("\n")
        ]

    def _start_times(self) -> dict[int, str]:
        """Return {pid: start time as of `worker.start_time`} of every training process that ever ran."""
        names = [path.name.split("-") for path in self._memory.glob("marks-*")]
        return {int(pid): began for _, pid, began in names}

    def stepping_pids(self) -> dict[int, int]:
        """Return the pid of each rank whose newest process is alive and has made a step, by rank."""
        began = self._start_times()
        last = first_steps(self.marks(), ())
        return {rank: mark.pid for rank, mark in last.items() if worker.start_time(mark.pid) == began[mark.pid]}

    def wait_until_stepping(self, limit_s: float = START_S) -> bool:
        """Wait until every rank is alive and has made a step. Return False after `limit_s` seconds, or if an agent
        ends.
        """
        give_up_s = time.monotonic() + limit_s
        while len(self.stepping_pids()) < RANKS:
            if time.monotonic() > give_up_s or any(agent.poll() is not None for agent in self._agents):
                return False
            time.sleep(LOOK_S)
        return True

    def kill_process(self, rank: int, limit_s: float) -> KillResult:
        """Kill the process of a rank with SIGKILL, and return what it cost.

        LOST if no step follows within `limit_s` seconds, or if all agents end. Raises KeyError if the rank's process is
        not alive or has made no step, and ProcessLookupError if it ends at the same time.
        """
        return self._kill_and_measure([self.stepping_pids()[rank]], RANKS, limit_s)

    def kill_agent(self, limit_s: float) -> KillResult:
        """Kill the last agent and all its processes at once, as a lost node; return what it cost.

        The other ranks have to make a step; LOST if they do not within `limit_s` seconds, or if all agents end.
        """
        agent = self._agents.pop()
        victims = [agent.pid, *_descendants(agent.pid)]
        return self._kill_and_measure(victims, RANKS - len({*self.stepping_pids().values()} & {*victims}), limit_s)

    def _kill_and_measure(self, victims: Sequence[int], ranks: int, limit_s: float) -> KillResult:
        """Kill processes, and wait until `ranks` ranks have made a step again. Return what it cost.

        LOST after `limit_s` seconds, or if all agents have ended. victims: pids.
        """
        with ExitStack() as stack:
            old = self._start_times().keys()
            ends = [os.pidfd_open(pid) for pid in self.stepping_pids().values()]
            for end in ends:
                stack.callback(os.close, end)
            printed, killed_s = len(self._printed_s), time.monotonic()
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            ended_s: dict[str, float] = {}
            while time.monotonic() < killed_s + limit_s:
                if "stopped" not in ended_s and len(select.select(ends, [], [], 0)[0]) == len(ends):
                    ended_s["stopped"] = time.monotonic()
                if "detected" not in ended_s and len(self._printed_s) > printed:
                    ended_s["detected"] = self._printed_s[printed]
                if found := kill_result(self.marks(), old, ranks, killed_s, ended_s):
                    return found
                if all(agent.poll() is not None for agent in self._agents):
                    return LOST
                time.sleep(LOOK_S)
            return LOST

    def _listen(self, agent: subprocess.Popen[str]) -> None:
        """Record the time of each line that an agent prints to stderr, and write the lines to a file. Runs in a
        thread.
        """
        assert agent.stderr
        with agent.stderr as lines, (self._folder / "agents.err").open("a") as file:
            for line in lines:
                self._printed_s.append(time.monotonic())
                file.write(line)


def kill_results(launcher: Launcher, names: NameSource, folder: Path, times: int, limit_s: float) -> list[KillResult]:
    """Kill one process `times` times, in as many jobs as the restart budgets need; return what each kill cost.

    A kill after which the job is lost counts as LOST. If a job does not start, all remaining kills count as LOST.
    folder: for the files of the jobs. limit_s: timeout of each recovery. launcher: of the jobs. names: how host names
    are resolved.
    """
    found: list[KillResult] = []
    while len(found) < times:
        with BenchmarkJob(launcher, names, folder) as job:
            if not job.wait_until_stepping():
                return [*found, *[LOST] * (times - len(found))]
            left = RESTARTS
            while left > 0 and len(found) < times:
                found.append(job.kill_process(RANKS - 1, limit_s))
                left -= max(1, found[-1].restarts_used)
                if found[-1] is LOST:
                    break
    return found


def kill_agent_result(launcher: Launcher, names: NameSource, folder: Path, limit_s: float) -> KillResult:
    """Kill one agent of two with its process, and return what it cost; LOST if the job does not start or recover.

    For the arguments see `kill_results`.
    """
    with BenchmarkJob(launcher, names, folder) as job:
        return job.kill_agent(limit_s) if job.wait_until_stepping() else LOST


def _end_agent(agent: subprocess.Popen[str]) -> None:
    """Terminate an agent; kill it after 10 s."""
    agent.terminate()
    try:
        agent.wait(10)
    except subprocess.TimeoutExpired:
        agent.kill()
        agent.wait()


def _descendants(pid: int) -> list[int]:
    """Return the pids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(stat.parent.name))
    found = [*children.get(pid, ())]
    for each in found:  # grows as it goes
        found += children.get(each, ())
    return found


def wait_until_listening(port: int) -> None:
    """Wait until an agent listens on the port, so that a later agent does not become the host. Return after START_S in
    any case.
    """
    give_up_s = time.monotonic() + START_S
    while time.monotonic() < give_up_s:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(LOOK_S)

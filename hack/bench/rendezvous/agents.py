"""Time N agents in P processes from a common start until the last has its rank.

If asked, one of them is killed then, and the time until the others have the next world is measured. One process serves
and P others hold N/P agents each. All are forked from one that has imported what they need and has a single thread; all
are killed at the end, so that no meeting finds what another has left. A RendezvousKind defines what they do.
"""

from __future__ import annotations

import gc
import math
import multiprocessing
import multiprocessing.connection
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any, Protocol

PROCESSES = 8
CALM_S = 0.5  # between a meeting and a death

Gate = Callable[[], None]  # says that all is ready and returns at the word


class RendezvousKind(Protocol):
    """A kind of rendezvous. Its methods run in separate processes."""

    def warm(self) -> None:
        """Import what the processes need, before they are forked."""
        ...

    def serve(self, agents: int, report: Callable[[float], None]) -> None:
        """Serve `agents` agents until killed. Call `report` with the port, and later with the time of each noticed
        death.
        """
        ...

    def meet(self, mine: Sequence[int], agents: int, port: int, gate: Gate) -> Iterator[list[float]]:
        """Let the agents of this process join a rendezvous of `agents` agents at `port`.

        mine: numbers of the agents in this process. gate: called when all of them are ready; it returns at the start
        signal. Yields a list of monotonic times, in seconds, at which each of these agents got its rank; after the
        death of an agent elsewhere, a second list for the next world.
        """
        ...


@dataclass(frozen=True, slots=True)
class WorldTimes:
    """The times of one rendezvous. A time is infinite if the limit passed before."""

    agents: int
    took_s: float = math.inf  # from the start signal until the last agent has its rank
    ready_s: float = math.inf  # from the start of the processes until all agents are ready
    noticed_s: float = math.inf  # from the death of one of them until the coordinator knew
    # From that moment until the last of the others held the next world.
    renewed_s: float = math.inf
    why: str = ""  # what broke, "" for nothing


class _ProcessFailed(Exception):
    """A process ended, or reported that it cannot go on."""


def gather(
    kind: RendezvousKind, agents: int, limit_s: float, *, one_dies: bool = False, processes: int = PROCESSES
) -> WorldTimes:
    """Run one rendezvous of `agents` agents in several processes, and return its times. All processes are killed
    afterwards.

    Call it in a process with a single thread. limit_s: seconds for everything. one_dies: the last agent has a process
    of its own, which is killed once all have met. processes: number, over which the other agents are distributed. kind:
    of the rendezvous. A timeout or an error is a result with `why`. Raises RuntimeError if this process has several
    threads.
    """
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"{threads} threads: a fork would take one of them")
    give_up_s = time.monotonic() + limit_s
    started: list[multiprocessing.process.BaseProcess] = []
    try:
        meeting = _Agents(kind, agents, give_up_s, started)
        meeting.start([*_shares(agents - one_dies, processes), *([range(agents - 1, agents)] if one_dies else [])])
        met = meeting.meet()
        return meeting.kill_last(met) if one_dies else met
    except TimeoutError:
        return WorldTimes(agents, why=f"not done in {limit_s:g} s")
    except _ProcessFailed as broke:
        return WorldTimes(agents, why=str(broke))
    finally:
        for process in started:
            process.kill()
        for process in started:
            process.join()


def _shares(agents: int, processes: int) -> list[range]:
    """Divide the numbers of agents over at most `processes` processes."""
    return [range(at, agents, processes) for at in range(min(processes, agents))]


class _Agents:
    """The processes of one rendezvous. started: gets each process as soon as it runs."""

    def __init__(
        self, kind: RendezvousKind, agents: int, give_up_s: float, started: list[multiprocessing.process.BaseProcess]
    ) -> None:
        self._kind, self._agents, self._give_up_s, self._started = kind, agents, give_up_s, started

    def start(self, shares: Sequence[range]) -> None:
        """Start the server, then a process for each share of the agents."""
        self._host = _start(self._started, _run_server, self._kind, self._agents)
        port = int(_receive_all([self._host], self._give_up_s)[0])
        self._began_s = time.monotonic()
        self._lines = [_start(self._started, _run_meetings, self._kind, each, self._agents, port) for each in shares]

    def meet(self) -> WorldTimes:
        """Wait until all agents are ready, give the start signal, and wait until the last agent has its rank.

        Returns the times of both. Raises TimeoutError, or _ProcessFailed if a process ends or fails.
        """
        _receive_all(self._lines, self._give_up_s)
        signal_s = time.monotonic()
        for line in self._lines:
            line.send(None)
        last_s = self._last_s(self._lines, self._agents)
        return WorldTimes(self._agents, last_s - signal_s, signal_s - self._began_s)

    def kill_last(self, met: WorldTimes) -> WorldTimes:
        """Kill the last process; return `met` with the times until its death was noticed and the others met again.

        Raises TimeoutError, or _ProcessFailed if another process ends or fails.
        """
        time.sleep(CALM_S)
        killed_s = time.monotonic()
        self._started[-1].kill()
        (noticed_s,) = _receive_all([self._host], self._give_up_s)
        last_s = self._last_s(self._lines[:-1], self._agents - 1)
        return replace(met, noticed_s=noticed_s - killed_s, renewed_s=last_s - noticed_s)

    def _last_s(self, lines: Sequence[Connection], agents: int) -> float:
        """Return when the last of `agents` agents got its rank, monotonic seconds. lines: to the agents' processes.

        Raises _ProcessFailed if some agents got none.
        """
        times: list[float] = [each for share in _receive_all(lines, self._give_up_s) for each in share]
        if len(times) != agents:
            raise _ProcessFailed(f"{len(times)} of {agents} agents told their rank")
        return max(times)


def _start(started: list[multiprocessing.process.BaseProcess], work: Callable[..., None], *args: Any) -> Connection:
    """Fork a process that runs `work(connection, *args)`. Return our end of the connection.

    started: the process is appended to it.
    """
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=work, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    started.append(process)
    return ours


def _receive_all(lines: Sequence[Connection], give_up_s: float) -> list[Any]:
    """Return the next message of each connection, in their order.

    give_up_s: monotonic seconds. Raises TimeoutError after it, and _ProcessFailed if a process has ended or reports an
    error.
    """
    answers: dict[Connection, Any] = {}
    while len(answers) < len(lines):
        left_s = give_up_s - time.monotonic()
        spoken = multiprocessing.connection.wait([line for line in lines if line not in answers], max(0.0, left_s))
        if not spoken:
            raise TimeoutError
        for line in spoken:
            assert isinstance(line, Connection)
            try:
                word = line.recv()
            except EOFError as error:
                raise _ProcessFailed("a process ended") from error
            if isinstance(word, _ProcessFailed):
                raise word
            answers[line] = word
    return [answers[line] for line in lines]


def _run_server(line: Connection, kind: RendezvousKind, agents: int) -> None:
    """Serve the rendezvous in this process; what the server reports goes through `line`. agents: their number."""
    _run_and_report(line, lambda: kind.serve(agents, line.send))


def _run_meetings(line: Connection, kind: RendezvousKind, mine: Sequence[int], agents: int, port: int) -> None:
    """Let the agents `mine` of this process meet, and send the times of each meeting through `line`.

    kind: of the rendezvous. agents: number of all agents. port: of the server.
    """

    def gate() -> None:
        line.send("ready")
        line.recv()

    def meet() -> None:
        gc.disable()  # an agent alone in its process has next to nothing to collect: a meeting must not pay for that
        for times in kind.meet(mine, agents, port, gate):
            line.send(times)

    _run_and_report(line, meet)


def _run_and_report(line: Connection, work: Callable[[], None]) -> None:
    """Call `work` with as many open files as allowed, send its error through `line`, and stay alive until killed."""
    _, maximum = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (maximum, maximum))
    try:
        work()
    except Exception as error:
        line.send(_ProcessFailed(f"{type(error).__name__}: {error}"))
    line.poll(None)

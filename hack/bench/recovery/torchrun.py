"""The job under plain torchrun: an agent for each node, all on loopback, each with its processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from hack.bench.recovery.acts import PLAN, RecoveryEvent
from hack.bench.recovery.jobs import OWN_STORE, torchrun, wait_until_listening
from hack.chaos.history import Record
from hack.chaos.testbed.history_tail import HistoryTail
from hack.chaos.testbed.manifests import MARK, MAX_WORKERS, MIN_WORKERS, ROOT
from hack.chaos.testbed.pod_processes import of_pods
from turnout.cli.verb_support.child_programs import free_port

TRAIN_SCRIPT = Path(__file__).with_name("train_script.py")
_LOOK_S = 0.02


class Torchrun:
    """Agents that meet at the first one's store. home: what all nodes see. conf: of the rendezvous, "" for defaults.

    An agent that ends by itself is started again, as a kubelet does it.
    """

    def __init__(self, home: Path, conf: str) -> None:
        self.records: list[Record] = []
        self._home, self._conf, self._port = home, conf, free_port()
        self._history = HistoryTail(home / "history")
        self._nodes: list[tuple[str, subprocess.Popen[bytes]]] = []  # that live, with their agents; one has the store
        self._agents: list[subprocess.Popen[bytes]] = []  # that ever were

    def add_node(self) -> None:
        """Start the agent of a new node. The first call also waits until the node's store listens."""
        name = f"{self._home.parent.name}-{time.monotonic_ns()}"
        command = torchrun(
            *(f"--nnodes={MIN_WORKERS}:{MAX_WORKERS}", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=story"),
            *(f"--rdzv-endpoint=127.0.0.1:{self._port}", "--max-restarts=100"),
            *([f"--rdzv-conf={self._conf}"] if self._conf else []),
            *(str(TRAIN_SCRIPT), str(self._home)),
        )
        env = {**os.environ, **OWN_STORE, MARK: name, "TURNOUT_WORKER": name, "PYTHONPATH": str(ROOT)}
        env |= {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        with (self._home / "logs" / f"{name}.log").open("wb") as log:
            agent = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._nodes.append((name, agent))
        self._agents.append(agent)
        if len(self._agents) == 1:
            wait_until_listening(self._port)

    async def strike(self, act: RecoveryEvent) -> float:
        """Cause the event `act` in the job, and return when it began, in monotonic seconds.

        KILLED hits the process with the highest rank of the newest round, FIRST_NODE_LOST the first node, which has the
        store. LEAVES and NODE_LOST hit the last node; GROWS adds a node. A lost node is replaced at once.
        """
        at_s = time.monotonic()
        match act:
            case RecoveryEvent.GROWS:
                await asyncio.to_thread(self.add_node)
            case RecoveryEvent.LEAVES:
                self._nodes.pop()[1].terminate()
            case RecoveryEvent.KILLED:
                begun = [record for record in self.records if record.event == "begun"]
                os.kill(max(begun, key=lambda record: (record.round, record.rank)).pid, signal.SIGKILL)
            case RecoveryEvent.NODE_LOST | RecoveryEvent.FIRST_NODE_LOST:
                name, _ = self._nodes.pop(0 if act is RecoveryEvent.FIRST_NODE_LOST else -1)
                await asyncio.to_thread(_kill, lambda home: home == name)
                await asyncio.to_thread(self.add_node)
        return at_s

    async def listen(self) -> None:
        """Collect new records, and start a node for each agent that has ended, until cancelled."""
        while True:
            self.records += await asyncio.to_thread(lambda: list(self._history.look()))
            for node in [node for node in self._nodes if node[1].poll() is not None]:
                self._nodes.remove(node)
                await asyncio.to_thread(self.add_node)
            await asyncio.sleep(_LOOK_S)

    def end(self) -> None:
        """Kill the processes of all nodes and wait for the agents."""
        _kill(lambda home: home.startswith(f"{self._home.parent.name}-"))
        for agent in self._agents:
            agent.wait()


@asynccontextmanager
async def start_job(workers: int, conf: str) -> AsyncIterator[Torchrun]:
    """Run a job of `workers` nodes while the block runs; its processes and its folder are removed afterwards.

    conf: for --rdzv-conf, "" for torchrun's defaults. The nodes may not have joined when the block begins.
    """
    with tempfile.TemporaryDirectory(prefix="torchrun-story-") as folder:
        home = Path(folder) / "home"
        for name in ("history", "logs"):
            (home / name).mkdir(parents=True)
        (home / "plan.json").write_text(json.dumps(asdict(PLAN)))
        job = Torchrun(home, conf)
        listening = asyncio.create_task(job.listen())
        try:
            for _ in range(workers):
                await asyncio.to_thread(job.add_node)
            yield job
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)
            job.end()


def _kill(matches: Callable[[str], bool]) -> None:
    """Kill the processes of all nodes that `matches` accepts by name, repeatedly until there are none."""
    while pids := list(_process_ids(matches)):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _process_ids(matches: Callable[[str], bool]) -> Iterator[int]:
    return (each.pid for each in of_pods() if matches(each.home))

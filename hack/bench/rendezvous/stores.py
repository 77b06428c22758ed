"""Two baselines on torch's TCPStore: NVRx's barrier and torch's own c10d rendezvous.

An agent is a thread with a client of its own, as each agent of theirs has in its process. What is timed is the
rendezvous alone: the agents connect before the start signal.
"""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from hack.bench.rendezvous.agents import Gate
from hack.bench.rendezvous.lower_bound import HERE

LIMIT = timedelta(seconds=300)
_STACK_BYTES = 1 << 20
_STEERING = ("SLURM_", "NVRX_", "GROUP_RANK", "CROSS_SLURM")  # of the caller's environment

Rendezvous = Callable[[], object]


class _Stores(ABC):
    """A TCPStore, and a thread for each agent."""

    def warm(self) -> None:
        """Import torch, which has the store, so that the import is not measured."""
        os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        for name in [name for name in os.environ if name.startswith(_STEERING)]:
            del os.environ[name]
        import torch.distributed  # noqa: F401

    def serve(self, agents: int, report: Callable[[float], None]) -> None:
        """Serve a store until killed. report: called with its port. agents: not used."""
        from torch.distributed import TCPStore

        store = TCPStore(HERE, 0, is_master=True, wait_for_workers=False, timeout=LIMIT)
        report(store.port)
        time.sleep(3600)

    def meet(self, mine: Sequence[int], agents: int, port: int, gate: Gate) -> Iterator[list[float]]:
        """Run a thread for each agent: connect, wait for the start signal, meet.

        mine: numbers of this process's agents. gate: returns at the start signal. Yields their times. Raises the first
        error of an agent.
        """
        threading.stack_size(_STACK_BYTES)
        ready = threading.Barrier(len(mine) + 1)
        word = threading.Event()
        times: list[float] = []
        faults: list[Exception] = []

        def live(agent: int) -> None:
            """Connect one agent, wait for the start signal, meet, and record the time or the error."""
            try:
                rendezvous = self.agent(agent, agents, _connect_store(port))
                ready.wait()
                word.wait()
                rendezvous()
                times.append(time.monotonic())
            except Exception as error:
                faults.append(error)
                ready.abort()

        threads = [threading.Thread(target=live, args=(agent,), daemon=True) for agent in mine]
        for thread in threads:
            thread.start()
        try:
            ready.wait()
        except threading.BrokenBarrierError:
            raise faults[0] from None
        gate()
        word.set()
        for thread in threads:
            thread.join()
        if faults:
            raise faults[0]
        yield times

    @abstractmethod
    def agent(self, agent: int, agents: int, store: Any) -> Rendezvous:
        """Prepare the rendezvous of one agent; return the function that runs it, which is called at the start signal.

        agent: its number, from 0. agents: their number. store: a connected TCPStore.
        """


class Connections(_Stores):
    """The connections only: the time until all are ready is their result."""

    def agent(self, agent: int, agents: int, store: Any) -> Rendezvous:
        """Return a function that does nothing: to connect is all that is timed."""
        return lambda: store


class Nvrx(_Stores):
    """The barrier of NVIDIA's resiliency extension: perform_rendezvous, without health checks and rank monitors."""

    def warm(self) -> None:
        """Import torch and the barrier, so that the import is not measured."""
        super().warm()
        _barrier()

    def agent(self, agent: int, agents: int, store: Any) -> Rendezvous:
        """Return the function that joins NVRx's rendezvous as one agent. Agent 0 closes the round, as NVRx's host does.

        agent: from 0 to agents - 1. agents: their number. store: a connected TCPStore.
        """
        barrier = _barrier()
        state = barrier._RendezvousBarrierState(
            store, "bench", is_store_host=agent == 0, join_timeout_seconds=LIMIT.total_seconds()
        )
        node = barrier._NodeDesc(f"host-{agent:05d}", os.getpid(), agent)
        return lambda: state.perform_rendezvous(node, agents, agents)


class C10d(_Stores):
    """torch's dynamic rendezvous, as torchrun uses it."""

    def warm(self) -> None:
        """Import torch and its c10d rendezvous, so that the import is not measured."""
        super().warm()
        import torch.distributed.elastic.rendezvous.c10d_rendezvous_backend  # noqa: F401

    def agent(self, agent: int, agents: int, store: Any) -> Rendezvous:
        """Return the function that joins torch's c10d rendezvous as one agent.

        min and max are equal, so that the round ends with the last arrival. agent: not used. agents: their number.
        store: a connected TCPStore.
        """
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import C10dRendezvousBackend
        from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler

        backend = C10dRendezvousBackend(store, "bench")
        handler = DynamicRendezvousHandler.from_backend("bench", store, backend, agents, agents, local_addr=HERE)
        return lambda: handler.next_rendezvous()


def _barrier() -> Any:
    return import_module("nvidia_resiliency_ext.fault_tolerance.ft_rendezvous_barrier")


def _connect_store(port: int) -> Any:
    from torch.distributed import TCPStore

    return TCPStore(HERE, port, is_master=False, wait_for_workers=False, timeout=LIMIT)

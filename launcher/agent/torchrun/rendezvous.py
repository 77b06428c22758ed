"""Implements torch's rendezvous interface. It imports torch, so handler.py imports it only when asked."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import api

from turnout.launcher.agent.start_agent import run_agent
from turnout.launcher.coordinator_messages import Formed
from turnout.launcher.errors import BadElasticSpec, BadSettings
from turnout.launcher.event_log import log_to
from turnout.launcher.model import PORT, ElasticSpec, Exit
from turnout.launcher.settings import Command, LockKind, PlaceSettings, RendezvousSettings, Settings
from turnout.launcher.workers.worker_group import WorkerBackend
from turnout.launcher.workers.worker_spec import AgreeStored, Exited

SHUTDOWN_S = 10.0  # longest wait for the agent's thread to end


class TorchAgentWorkers(WorkerBackend):
    """Represents the processes of torch's agent as a WorkerBackend. Used only in the rendezvous' event loop."""

    def __init__(self) -> None:
        self.formed: asyncio.Queue[Formed] = asyncio.Queue()
        self.stale = False  # the world has changed: torch's agent should stop and rejoin
        self._ended: asyncio.Future[tuple[Exited, ...]] | None = None
        self._free = asyncio.Event()
        self._free.set()

    async def start(self, formed: Formed, agree_stored: AgreeStored) -> None:
        """Pass a new world to torch's agent, which starts the processes itself. agree_stored: unused."""
        self._ended, self.stale = asyncio.get_running_loop().create_future(), False
        self._free.clear()
        self.formed.put_nowait(formed)

    async def wait_ended(self) -> tuple[Exited, ...]:
        """Wait until torch's agent returns by itself, which means that a process failed or all are done."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Mark the round as stale, so that torch's agent stops its processes, and wait until it has. Return ().

        torch's agent checks every --monitor-interval. grace_s, sig: unused, since torch's agent decides both.
        """
        self.stale = True
        await self._free.wait()
        return ()

    def rejoin(self, code: int) -> None:
        """Record that torch's agent has no processes now; unless the round is stale, this ends it.

        code: the exit code of the round: 0 if the processes are done for good, else another round follows.
        """
        self._free.set()
        if self._ended is not None and not self._ended.done() and not self.stale:
            self._ended.set_result((Exited(0, 0, code, error="" if code == 0 else "torch's agent starts anew"),))

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """Release waiting callers; there is nothing to close."""
        self._free.set()


class BackgroundAgent:
    """Runs an agent's event loop in a thread beside torch's agent."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.new_event_loop()
        self.training = TorchAgentWorkers()
        self.leave: Callable[[], None] = lambda: None
        self.over: Future[Exit] = Future()
        self._thread = threading.Thread(target=self._run, args=(settings,), name="turnout", daemon=True)
        self._thread.start()

    def _run(self, settings: Settings) -> None:
        """Run the agent's event loop in this thread until the job is over.

        The result or the error is left in `over`.
        """
        asyncio.set_event_loop(self.loop)
        try:
            self.over.set_result(self.loop.run_until_complete(self._attend(settings)))
        except BaseException as error:  # without a result, torch's agent would wait for ever
            self.over.set_exception(error)
        finally:
            self.loop.close()

    async def _attend(self, settings: Settings) -> Exit:
        """Run the agent as a coroutine of this thread's loop, and return how the job ended."""

        def ready(leave: Callable[[], None]) -> None:
            """Store the function that makes the agent leave the job."""
            self.leave = leave

        log_event = log_to(log, quiet=["job_time_measured", "save_ended"], foreign=True)
        return await run_agent(settings, os.environ, log_event, training=self.training, ready=ready)

    def call(self, work: Coroutine[Any, Any, Formed]) -> Future[Formed]:
        """Run a coroutine in the loop, and return the future of its result. Called from another thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function in the loop. Nothing happens if the agent has ended."""
        if not self.over.done():
            self.loop.call_soon_threadsafe(function)

    def leave_job(self) -> None:
        """Record that torch's agent is done for good, and leave the job. Called in the loop."""
        self.training.rejoin(0)
        self.leave()

    def join(self) -> bool:
        """Wait up to SHUTDOWN_S for the thread to end. True if it has ended."""
        self._thread.join(SHUTDOWN_S)
        return not self._thread.is_alive()


def settings_of(parameters: Any) -> Settings:
    """Make settings from torch's RendezvousParameters and TURNOUT_* variables of this process.

    TURNOUT_LEASE or TURNOUT_ROUND_DIR choose the arbiter; of both, the Lease counts. Raises BadSettings or
    BadElasticSpec for values out of bounds, and ValueError for a port, or a time in --rdzv-conf, that is no number.
    """
    host, _, port = (
        str(parameters.endpoint or "").rpartition(":")
        if ":" in (parameters.endpoint or "")
        else (parameters.endpoint, "", "")
    )
    lease, folder = os.environ.get("TURNOUT_LEASE", ""), os.environ.get("TURNOUT_ROUND_DIR", "")
    kind = LockKind.LEASE if lease else LockKind.FILE if folder else LockKind.MAJORITY

    def number(key: str, default: float) -> float:
        """Return the number of a key in --rdzv-conf, `default` without the key. Raises ValueError for other text."""
        return float(parameters.get(key, default))

    return Settings(
        Command("torch's agent"),
        ElasticSpec(
            parameters.min_nodes,
            parameters.max_nodes,
            max_restarts=1 << 30,
            last_call_s=number("last_call_timeout", 30),
            join_timeout_s=number("join_timeout", 600),
        ),
        1,
        RendezvousSettings(
            run=parameters.run_id,
            host=(host or "").strip("[]"),
            port=int(port or PORT),
            arbiter=kind,
            lease=lease,
            round_dir=folder,
            token_file=os.environ.get("TURNOUT_TOKEN_FILE", ""),
            insecure=os.environ.get("TURNOUT_INSECURE_NO_TOKEN", "") == "1",
        ),
        PlaceSettings(name=os.environ.get("POD_NAME", ""), address=getattr(parameters, "local_addr", None) or ""),
    )


log = logging.getLogger("turnout.launcher")


class TurnoutRendezvous(api.RendezvousHandler):  # type: ignore[misc, unused-ignore]
    """Torch's rendezvous handler over a BackgroundAgent. Raises ValueError for parameters that are out of bounds."""

    def __init__(self, parameters: Any) -> None:
        self._run, self._closed = parameters.run_id, False
        self._store: Any = None
        self._address = getattr(parameters, "local_addr", None)
        try:
            self._thread = BackgroundAgent(settings_of(parameters))
        except (BadSettings, BadElasticSpec) as error:
            raise ValueError(str(error)) from error

    def get_backend(self) -> str:
        """Return the name of this rendezvous back-end."""
        return "turnout"

    def next_rendezvous(self) -> Any:
        """Join the next round, wait until it has formed, and return torch's RendezvousInfo for it. Called by torch's
        agent.

        If the host of the round's store is lost before it answers, this is logged, and the round after it is joined.
        Raises RendezvousConnectionError if the agent failed, and RendezvousClosedError if the job is over.
        """
        thread = self._thread
        while True:
            thread.call_soon(lambda: thread.training.rejoin(1))
            formed = self._formed()
            try:
                return self._info(formed)
            except (RuntimeError, OSError) as error:  # its host was lost at once: another round follows
                log.warning("store_lost round=%d why=%s", formed.round, error)

    def _formed(self) -> Formed:
        """Block until a round has formed, and return it.

        Raises RendezvousConnectionError if the agent failed, RendezvousClosedError if the job is over: then this
        rendezvous counts as closed.
        """
        thread = self._thread
        waiting = thread.call(thread.training.formed.get())
        while not waiting.done():
            if thread.over.done():
                waiting.cancel()
                if (fault := thread.over.exception()) is not None:
                    raise api.RendezvousConnectionError(str(fault)) from fault
                self._closed = True
                raise api.RendezvousClosedError(f"the job is over: exit {int(thread.over.result())}")
            either: list[Future[Any]] = [waiting, thread.over]
            wait(either, return_when=FIRST_COMPLETED)
        return waiting.result()

    def _info(self, formed: Formed) -> Any:
        """Open the store of this round (rank 0 hosts it), and return torch's RendezvousInfo.

        Raises RuntimeError or OSError if the store cannot be reached.
        """
        self._store = TCPStore(
            formed.master_address, formed.master_port, is_master=formed.group_rank == 0, wait_for_workers=False
        )
        store = PrefixStore(f"turnout/{formed.round}", self._store)
        # Without an address, torch takes a name of this host; ours is known.
        address = formed.master_address if formed.group_rank == 0 else None
        bootstrap = api.RendezvousStoreInfo.build(formed.group_rank, store, address)
        return api.RendezvousInfo(store, formed.group_rank, formed.group_size, bootstrap)

    def is_closed(self) -> bool:
        """Return True if no more rounds form: torch's agent closed the rendezvous, or the job is over."""
        return self._closed or self._thread.over.done()

    def set_closed(self) -> None:
        """Mark the rendezvous as closed for this worker."""
        self._closed = True

    def num_nodes_waiting(self) -> int:
        """Return 1 if the world has changed, so that torch's agent stops its processes and rejoins, else 0."""
        return int(self._thread.training.stale)

    def get_run_id(self) -> str:
        """Return the job's id."""
        return str(self._run)

    def shutdown(self) -> bool:
        """Leave the job and wait up to SHUTDOWN_S for its thread. Return True if it has ended."""
        thread = self._thread
        thread.call_soon(thread.leave_job)
        return thread.join()

"""Our rendezvous in a thread beside torch's agent: it has the processes, we say when and in which world they run."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from typing import Any

from turnout.launcher.errors import LauncherError
from turnout.launcher.model import Exit, Terms
from turnout.launcher.process.orders import Exited
from turnout.launcher.settings import ArbiterKind, Command, Meeting, Place, Settings
from turnout.launcher.shell.hands import Naming
from turnout.launcher.shell.say import into
from turnout.launcher.shell.start import attend
from turnout.launcher.shell.watching.stacks import Taken
from turnout.launcher.wire import PORT, Formed, Handover, Held

log = logging.getLogger("turnout.launcher")
SHUTDOWN_S = 10.0


class Borrowed:
    """Processes that torch's agent has, with the face of Training. Lives in the rendezvous' own loop."""

    def __init__(self) -> None:
        self.formed: asyncio.Queue[Formed] = asyncio.Queue()
        self.stale = False  # the world has changed: torch's agent should stop and come again
        self._ended: asyncio.Future[tuple[Exited, ...]] | None = None
        self._free = asyncio.Event()
        self._free.set()

    async def warm(self) -> None:
        """Nothing is imported ahead."""

    def importing_s(self) -> float:
        """Nor waited for."""
        return 0.0

    async def start(self, formed: Formed, named: Naming) -> None:
        """A world: torch's agent gets it."""
        self._ended, self.stale = asyncio.get_running_loop().create_future(), False
        self._free.clear()
        self.formed.put_nowait(formed)

    async def ended(self) -> tuple[Exited, ...]:
        """Wait until torch's agent comes again unasked, which means that one has failed, or is done."""
        assert self._ended is not None
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float | None = None, sig: int = signal.SIGTERM) -> tuple[Exited, ...]:
        """Have torch's agent stop its processes: it looks every --monitor-interval."""
        self.stale = True
        await self._free.wait()
        return ()

    def came_again(self, code: int) -> None:
        """torch's agent has no processes any more. code: 0 when it is done for good."""
        self._free.set()
        if self._ended is not None and not self._ended.done() and not self.stale:
            self._ended.set_result((Exited(0, 0, code, error="" if code == 0 else "torch's agent starts anew"),))

    def steps(self) -> tuple[int, int]:
        """Nobody tells us steps."""
        return -1, -1

    def stop_at(self, step: int, *, sure: bool) -> int:
        """Nor can we name one."""
        return -1

    def hung(self) -> Mapping[int, str]:
        """Nobody looks."""
        return {}

    async def show(self) -> Mapping[int, Taken]:
        """Nobody knows which they are."""
        return {}

    async def held(self, *, if_stopped: bool = False) -> tuple[Held, ...]:
        """Nothing: torch's own agent has the processes, and no keeper."""
        return ()

    async def hand_over(self, order: Handover) -> None:
        """Nothing is ours."""

    async def carry(self, step: int) -> None:
        """Nothing is ours."""

    async def close(self, *, done: bool = False, by_s: float | None = None) -> None:
        """Nothing is ours."""
        self._free.set()


class Beside:
    """The rendezvous' loop, in a thread beside torch's agent."""

    def __init__(self, settings: Settings) -> None:
        self.loop = asyncio.new_event_loop()
        self.training = Borrowed()
        self.leave: Callable[[], None] = lambda: None
        self.over: Future[Exit] = Future()
        self._thread = threading.Thread(target=self._run, args=(settings,), name="turnout", daemon=True)
        self._thread.start()

    def _run(self, settings: Settings) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.over.set_result(self.loop.run_until_complete(self._attend(settings)))
        except (LauncherError, OSError) as error:
            self.over.set_exception(error)
        finally:
            self.loop.close()

    async def _attend(self, settings: Settings) -> Exit:
        def ready(leave: Callable[[], None]) -> None:
            self.leave = leave

        return await attend(settings, os.environ, into(log, foreign=True), training=self.training, ready=ready)

    def call(self, work: Coroutine[Any, Any, Formed]) -> Future[Formed]:
        """Do this in the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def tell(self, what: Callable[[], None]) -> None:
        """Say this in the loop; nothing when it has ended."""
        if not self.over.done():
            self.loop.call_soon_threadsafe(what)

    def go(self) -> None:
        """torch's agent is done for good. Called in the loop."""
        self.training.came_again(0)
        self.leave()

    def join(self) -> bool:
        """Wait for its end. Has it come?"""
        self._thread.join(SHUTDOWN_S)
        return not self._thread.is_alive()


def settings_of(parameters: Any) -> Settings:
    """Our settings, from torch's RendezvousParameters and TURNOUT_*. Raises BadSettings."""
    host, _, port = str(parameters.endpoint or "").rpartition(":") if ":" in (parameters.endpoint or "") else (
        parameters.endpoint, "", ""
    )  # fmt: skip
    lease, folder = os.environ.get("TURNOUT_LEASE", ""), os.environ.get("TURNOUT_ROUND_DIR", "")
    kind = ArbiterKind.LEASE if lease else ArbiterKind.FILE if folder else ArbiterKind.MAJORITY

    def number(key: str, usual: float) -> float:
        return float(parameters.get(key, usual))

    return Settings(
        Command("torch's agent"),
        Terms(
            parameters.min_nodes, parameters.max_nodes, max_restarts=1 << 30,
            last_call_s=number("last_call_timeout", 30), join_timeout_s=number("join_timeout", 600),
        ),
        1,
        Meeting(
            run=parameters.run_id, host=(host or "").strip("[]"), port=int(port or PORT), arbiter=kind, lease=lease,
            round_dir=folder, token_file=os.environ.get("TURNOUT_TOKEN_FILE", ""),
            insecure=os.environ.get("TURNOUT_INSECURE_NO_TOKEN", "") == "1",
        ),
        Place(name=os.environ.get("POD_NAME", ""), address=getattr(parameters, "local_addr", None) or ""),
    )  # fmt: skip

"""Implements torch's rendezvous interface. It imports torch, so handler.py imports it only when asked."""

from __future__ import annotations

import logging
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous import api

from turnout.launcher.agent.torchrun.background_agent import BackgroundAgent, settings_of
from turnout.launcher.coordinator_messages import Formed
from turnout.launcher.errors import BadSettings

log = logging.getLogger("turnout.launcher")


class TurnoutRendezvous(api.RendezvousHandler):  # type: ignore[misc, unused-ignore]
    """Torch's rendezvous handler over a BackgroundAgent."""

    def __init__(self, parameters: Any) -> None:
        self._run, self._closed = parameters.run_id, False
        self._store: Any = None
        self._address = getattr(parameters, "local_addr", None)
        try:
            self._thread = BackgroundAgent(settings_of(parameters))
        except BadSettings as error:
            raise ValueError(str(error)) from error

    def get_backend(self) -> str:
        return "turnout"

    def next_rendezvous(self) -> Any:
        thread = self._thread
        while True:
            thread.tell(lambda: thread.training.came_again(1))
            formed = self._formed()
            try:
                return self._info(formed)
            except (RuntimeError, OSError) as error:  # its host was lost at once: another round follows
                log.warning("store_lost round=%d why=%s", formed.round, error)

    def _formed(self) -> Formed:
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
        """Open the store of this round and describe it for torch. Raises RuntimeError or OSError if it is lost."""
        self._store = TCPStore(
            formed.master_address, formed.master_port, is_master=formed.group_rank == 0, wait_for_workers=False
        )
        store = PrefixStore(f"turnout/{formed.round}", self._store)
        # Without an address, torch takes a name of this host; ours is known.
        address = formed.master_address if formed.group_rank == 0 else None
        bootstrap = api.RendezvousStoreInfo.build(formed.group_rank, store, address)
        return api.RendezvousInfo(store, formed.group_rank, formed.group_size, bootstrap)

    def is_closed(self) -> bool:
        return self._closed or self._thread.over.done()

    def set_closed(self) -> None:
        self._closed = True

    def num_nodes_waiting(self) -> int:
        return int(self._thread.training.stale)

    def get_run_id(self) -> str:
        return str(self._run)

    def shutdown(self) -> bool:
        thread = self._thread
        thread.tell(thread.go)
        return thread.join()

"""Maps an arena's pages before the first save in the process that saves, and registers them with its GPU's driver.

A copy from a GPU into unregistered pages goes through a buffer of the driver, and the host waits. Into registered pages
it runs at bus speed, beside training. A mapping is registered as a whole, since a copy across the end of a registered
range fails. Source: docs/facts/launcher.md 4
"""

from __future__ import annotations

import logging
import threading
import time

from turnout.launcher.accelerator import PageRegistrar
from turnout.launcher.checkpoint.arena.arena import Arena, address_of
from turnout.launcher.errors import NoMemory

log = logging.getLogger("turnout.checkpoint")


class PinnedPages:
    """Prepares the pages of one process's arena. generations: how many are saved into.

    `by_file` is True if pages that are not mapped are allocated faster through the file. It is False if the kernel
    cannot map them ahead.
    """

    def __init__(self, generations: int) -> None:
        self.by_file = True
        self._generations = generations
        self._mapped_bytes = 0  # bytes of each generation that are mapped, or soon will be
        self._requested_bytes = 0  # bytes of each that are registered, soon will be, or were refused
        self._arena: Arena | None = None
        self._registered: dict[int, tuple[memoryview, PageRegistrar]] = {}  # the view keeps it mapped
        self._making: threading.Thread | None = None

    def prepare(self, arena: Arena, size: int, registrar: PageRegistrar | None = None) -> None:
        """Map the pages of all generations in the background, and register them if a registrar is given. Does nothing
        if already begun.
        """
        if arena is not self._arena:
            self._finish()
            self._arena, self._mapped_bytes, self._requested_bytes = arena, 0, 0
        known = size <= self._mapped_bytes and (registrar is None or size <= self._requested_bytes)
        if known or (self._making is not None and self._making.is_alive()):
            return
        self._mapped_bytes = size
        self._requested_bytes = self._requested_bytes if registrar is None else size
        self._making = threading.Thread(
            target=self._make, args=(arena, size, registrar), name="turnout-pages", daemon=True
        )
        self._making.start()

    def wait(self) -> None:
        """Wait until the pages are mapped."""
        if self._making is not None:
            self._making.join()

    def is_registered(self, view: memoryview, generation: int) -> bool:
        """True if this view's pages are registered, so that a device copies into them without holding the host."""
        mapping, _ = self._registered.get(generation, (None, None))
        return mapping is not None and mapping.obj is view.obj

    def close(self) -> None:
        """Unregister all pages. Call it before the arena is closed."""
        self._finish()

    def _finish(self) -> None:
        self.wait()
        if self._registered:  # on a thread of its own: see CudaRegistrar
            forget = threading.Thread(target=self._forget_all, name="turnout-pages")
            forget.start()
            forget.join()

    def _forget_all(self) -> None:
        for generation in list(self._registered):
            self._forget(generation)

    def _make(self, arena: Arena, size: int, registrar: PageRegistrar | None) -> None:
        generations = range(min(self._generations, arena.identity.count))
        try:
            for generation in generations:
                self.by_file = arena.populate(generation, size) and self.by_file
        except NoMemory:  # the next save reports it
            return
        if registrar is not None:
            self._register(arena, generations, size, registrar)

    def _register(self, arena: Arena, generations: range, size: int, registrar: PageRegistrar) -> None:
        began_s, new_bytes = time.monotonic(), 0
        for generation in generations:
            mapping = memoryview(arena.map(generation, size).obj)
            registered, _ = self._registered.get(generation, (None, None))
            if registered is not None and registered.obj is mapping.obj:
                continue
            self._forget(generation)
            if why := registrar.register(address_of(mapping), mapping.nbytes):
                log.warning("memory_not_registered", extra={"bytes": mapping.nbytes, "why": why})
                return  # copies from the device are slower then, but correct
            self._registered[generation] = mapping, registrar
            new_bytes += mapping.nbytes
        if new_bytes:
            took_s = round(time.monotonic() - began_s, 3)
            log.info("memory_registered", extra={"bytes": new_bytes, "took_s": took_s})

    def _forget(self, generation: int) -> None:
        view, registrar = self._registered.pop(generation, (None, None))
        if view is not None and registrar is not None:
            registrar.unregister(address_of(view))

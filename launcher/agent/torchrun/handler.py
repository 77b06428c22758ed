"""Defines the entry point `torchrun.handlers`, through which torch finds the backend `turnout`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """Return a function that makes a rendezvous handler from torch's RendezvousParameters."""

    def create(parameters: Any) -> Any:
        """Make the rendezvous handler. This imports torch."""
        from turnout.launcher.agent.torchrun.rendezvous import TurnoutRendezvous

        return TurnoutRendezvous(parameters)

    return create

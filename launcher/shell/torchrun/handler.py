"""The entry point `torchrun.handlers`: what torch's registry asks for the backend `turnout`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def handler() -> Callable[[Any], Any]:
    """What the registry wants: a function that makes a handler of torch's RendezvousParameters."""

    def create(parameters: Any) -> Any:
        from turnout.launcher.shell.torchrun.rendezvous import TurnoutRendezvous

        return TurnoutRendezvous(parameters)

    return create

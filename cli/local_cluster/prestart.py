"""Starts port, kubeconfig and extender of a local cluster before its own modules are imported.

Each program needs about one second for its imports. Started together, they cost the user one second. The kernel queues
connections to the port until then. Nothing heavy may be imported here.
"""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

from turnout.cli.local_cluster.daemon import KUBECONFIG, MAP
from turnout.cli.verb_support.child_programs import StartedExtender, extender_command, start_extender
from turnout.simulator.api.kubeconfig import kubeconfig

_HOST = "127.0.0.1"
_QUEUE = 128


@dataclass(frozen=True, slots=True)
class Prestarted:
    """What runs before the local cluster's own modules are imported."""

    listening: socket.socket  # the API's socket
    token: str  # that its callers have to show
    extender: StartedExtender | None  # a child that looks for the API; None without one


def prestart(folder: Path, port: int, extender: bool) -> Prestarted:
    """Open the API's port, write the kubeconfig, and start the extender before slower imports; return what was started.

    folder: for the kubeconfig and the extender's files. port: of the API, 0 for a free one. extender: False starts
    none. Raises OSError if the port is in use, or if a file cannot be written.
    """
    listening = socket.create_server((_HOST, port), backlog=_QUEUE)
    config = folder / KUBECONFIG
    token = secrets.token_urlsafe(32)
    config.unlink(missing_ok=True)  # it may be an older one that others can read
    config.touch(mode=0o600, exist_ok=False)
    config.write_text(kubeconfig(f"http://{_HOST}:{listening.getsockname()[1]}", token))
    return Prestarted(listening, token, start_extender(extender_command(), config, MAP, folder) if extender else None)

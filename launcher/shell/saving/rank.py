"""Who a training process is, as far as its checkpoints go: what its launcher has put into its environment."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.process.environment import KEEPER, MEMORY, RESTORE, ROUND, RUN, WORKER

# What differs between launches, so that what two of them have left in storage is never committed together.
_LAUNCH = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Rank:
    """One process. restore: the step that all ranks hold in memory, -1 for none; None where nobody has said.

    beside: there is an agent, and its keeper. memory: where arenas lie.
    """

    run: str
    worker: str
    rank: int
    local_rank: int
    world: int
    local_world: int
    round: int
    restore: int | None
    beside: bool
    memory: Path
    folder: str

    @classmethod
    def of(cls, environ: Mapping[str, str], folder: str) -> Rank:
        """This process. folder: of its checkpoints: without an agent that is how it finds its memory again."""

        def number(name: str, usual: int) -> int:
            text = environ.get(name, "")
            return int(text) if text.lstrip("-").isdecimal() else usual

        beside = KEEPER in environ
        launch = [environ.get(name, "") for name in _LAUNCH] if number("WORLD_SIZE", 1) > 1 else []
        own = hashlib.sha256("\0".join([folder, *launch]).encode()).hexdigest()[:32]
        hostname = socket.gethostname()
        return cls(
            environ.get(RUN, "") if beside else f"own-{own}",
            environ.get(WORKER, hostname) if beside else hostname,
            number("RANK", 0), number("LOCAL_RANK", 0), number("WORLD_SIZE", 1), number("LOCAL_WORLD_SIZE", 1),
            number(ROUND, 0), number(RESTORE, -1) if beside else None, beside, memory_folder(environ), folder,
        )  # fmt: skip


def memory_folder(environ: Mapping[str, str]) -> Path:
    """Where arenas lie: TURNOUT_MEMORY_DIR, else /dev/shm."""
    return Path(environ.get(MEMORY) or ("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"))

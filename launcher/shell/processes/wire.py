"""What an agent and a parent of training processes say to one another: msgpack with a schema over a socketpair.

How frames travel is in launcher/framing.py. Both ends are ours and of one version.
"""

from __future__ import annotations

import msgspec

from turnout.launcher.framing import decode, frame

MOST_BYTES = 64 << 20  # a thousand orders with a large environment each
READ_BYTES = 1 << 16


class Task(msgspec.Struct, frozen=True):
    """One process to be started. spawn: what is executed; () = a fork that runs `argv` as Python would.

    module: `argv` begins with a module, else with a script. stdout, stderr: files, "" = those of the parent. learn: a
    file in which a fork writes down what it imports, "" = none.
    """

    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    spawn: tuple[str, ...] = ()
    module: bool = False
    cwd: str = ""
    stdout: str = ""
    stderr: str = ""
    cpus: tuple[int, ...] = ()
    learn: str = ""


class Start(msgspec.Struct, tag="start", frozen=True):
    """Start these, in order."""

    tasks: tuple[Task, ...]


class Stop(msgspec.Struct, tag="stop", frozen=True):
    """Signal every process group now, kill what is there after `grace_s`, then every orphan."""

    signal: int
    grace_s: float


class Ready(msgspec.Struct, tag="ready", frozen=True):
    """A parent has imported what it was told. failed: what could not be imported, and why.

    refuses: why it will never fork, "" when it may. harmful: the package whose import is the cause, if one is.
    """

    took_s: float
    failed: dict[str, str] = {}
    refuses: str = ""
    harmful: str = ""


class Started(msgspec.Struct, tag="started", frozen=True):
    """What became of a Start: pids of those started, and why the others were not, both by local rank."""

    pids: dict[int, int]
    refused: dict[int, str]


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """A process has ended. code, stuck: as Exited has them."""

    local_rank: int
    pid: int
    code: int
    stuck: bool = False


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """A Stop is done: nothing is left. orphans: names of those that had to be killed."""

    orphans: tuple[str, ...] = ()


Told = Start | Stop
Heard = Ready | Started | Ended | Stopped

_encoder = msgspec.msgpack.Encoder()
_told: msgspec.msgpack.Decoder[Told] = msgspec.msgpack.Decoder(Told)
_heard: msgspec.msgpack.Decoder[Heard] = msgspec.msgpack.Decoder(Heard)


def encode(message: Told | Heard) -> bytes:
    """One frame, ready to be sent."""
    return frame(_encoder.encode(message))


def told(body: bytes) -> Told:
    """What the agent said. Raises BadFrame."""
    return decode(_told, body)


def heard(body: bytes) -> Heard:
    """What a parent said. Raises BadFrame."""
    return decode(_heard, body)

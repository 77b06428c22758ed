"""What an agent and a parent of training processes say to one another: msgpack with a schema over a socketpair.

A frame is four bytes of length, big endian, and one message. Both ends are ours and of one version.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from turnout.launcher.errors import BadFrame

_LENGTH = struct.Struct(">I")
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


def frame(message: Told | Heard) -> bytes:
    """The bytes of one message."""
    body = _encoder.encode(message)
    return _LENGTH.pack(len(body)) + body


class Frames:
    """Bytes as they come, cut into the bodies of messages."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def cut(self, more: bytes) -> Iterator[bytes]:
        """Every body that is whole by now. Raises BadFrame on a length that is out of bounds."""
        self._rest += more
        while len(self._rest) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._rest)
            if length > MOST_BYTES:
                raise BadFrame(f"a frame of {length} bytes")
            if len(self._rest) < _LENGTH.size + length:
                return
            body = bytes(self._rest[_LENGTH.size : _LENGTH.size + length])
            del self._rest[: _LENGTH.size + length]
            yield body


def told(body: bytes) -> Told:
    """What the agent said. Raises BadFrame."""
    try:
        return _told.decode(body)
    except msgspec.DecodeError as error:
        raise BadFrame(str(error)) from error


def heard(body: bytes) -> Heard:
    """What a parent said. Raises BadFrame."""
    try:
        return _heard.decode(body)
    except msgspec.DecodeError as error:
        raise BadFrame(str(error)) from error

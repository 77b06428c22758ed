"""Defines the messages between an agent and a parent of training processes: msgpack over a socket pair.

Frames are in launcher/framing.py. Both ends are of one version.
"""

from __future__ import annotations

import msgspec

from turnout.launcher.framing import decode, frame

MAX_BYTES = 64 << 20  # a thousand requests with a large environment each
READ_BYTES = 1 << 16


class Task(msgspec.Struct, frozen=True):
    """Describes one training process for a parent to start, by a fork or by executing a program."""

    local_rank: int
    argv: tuple[str, ...]  # begins with a module or a script
    env: dict[str, str]
    spawn: tuple[str, ...] = ()  # the program to execute; () for a fork that runs `argv` as Python would
    module: bool = False  # argv begins with a module
    cwd: str = ""
    stdout: str = ""  # a file, "" for the parent's
    stderr: str = ""  # a file, "" for the parent's
    cpus: tuple[int, ...] = ()


class StartTasks(msgspec.Struct, tag="start", frozen=True):
    """Starts these processes, in order."""

    tasks: tuple[Task, ...]


class StopTasks(msgspec.Struct, tag="stop", frozen=True):
    """Signals every process group now, kills what remains after `grace_s` seconds, then every orphan."""

    signal: int
    grace_s: float


class ParentReady(msgspec.Struct, tag="ready", frozen=True):
    """Announces that a parent has finished its imports."""

    took_s: float  # for the imports
    failed: dict[str, str] = {}  # modules that could not be imported, and why
    refuses: str = ""  # why it will never fork, "" if it may


class Started(msgspec.Struct, tag="started", frozen=True):
    """Answers StartTasks: the pids of started processes, and why others were refused, both by local rank."""

    pids: dict[int, int]
    refused: dict[int, str]


class Ended(msgspec.Struct, tag="ended", frozen=True):
    """Announces that a process has ended. code, stuck: as in Exited."""

    local_rank: int
    pid: int
    code: int
    stuck: bool = False


class Stopped(msgspec.Struct, tag="stopped", frozen=True):
    """Answers StopTasks: nothing is left. orphans: names of processes that had to be killed."""

    orphans: tuple[str, ...] = ()


ParentOrder = StartTasks | StopTasks
ParentReport = ParentReady | Started | Ended | Stopped

_encoder = msgspec.msgpack.Encoder()
_order_decoder: msgspec.msgpack.Decoder[ParentOrder] = msgspec.msgpack.Decoder(ParentOrder)
_report_decoder: msgspec.msgpack.Decoder[ParentReport] = msgspec.msgpack.Decoder(ParentReport)


def encode(message: ParentOrder | ParentReport) -> bytes:
    """Encode a message as one frame."""
    return frame(_encoder.encode(message))


def read_order(body: bytes) -> ParentOrder:
    """Decode a message from the agent. Raises BadFrame for any other bytes."""
    return decode(_order_decoder, body)


def read_report(body: bytes) -> ParentReport:
    """Decode a message from a parent. Raises BadFrame for any other bytes."""
    return decode(_report_decoder, body)

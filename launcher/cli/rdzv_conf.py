"""Defines the keys of --rdzv-conf, from torch's back-ends and from DLRover, each with its effect here.

Source: docs/facts/launcher.md 1; torch.distributed.elastic.rendezvous
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from turnout.launcher.cli import value_types
from turnout.launcher.cli.parser import BadCommand
from turnout.launcher.settings import StartNote, Warned

_STORE = "there is no store; members talk to the coordinator"
_ETCD = "etcd is not contacted"


@dataclass(frozen=True, slots=True)
class Key:
    """One key of --rdzv-conf."""

    name: str
    text: str  # what it does, or why it has no effect here
    example: str  # a value
    sets: tuple[str, ...] = ()  # () for no effect
    read: Callable[[str], object] = value_types.text
    same: str = ""  # the key that it is another name of


KEYS = (
    Key(
        "join_timeout",
        "seconds that a round may take to form; 600 by default",
        "90",
        ("elastic_spec.join_timeout_s",),
        value_types.seconds,
    ),
    Key(
        "timeout",
        "same as join_timeout; the name in torch's etcd back-end",
        "90",
        ("elastic_spec.join_timeout_s",),
        value_types.seconds,
        "join_timeout",
    ),
    Key(
        "last_call_timeout",
        "seconds that a round waits for more workers once it has its minimum, 30 by default; --last-call-s wins",
        "2",
        ("elastic_spec.last_call_s",),
        value_types.seconds,
    ),
    Key(
        "lastcall_timeout",
        "same as last_call_timeout; the name in DLRover",
        "2",
        ("elastic_spec.last_call_s",),
        value_types.seconds,
        "last_call_timeout",
    ),
    Key(
        "keep_alive_interval",
        "seconds between heartbeats; --heartbeat-s wins",
        "1",
        ("timing.heartbeat_s", "timing.silence_s"),
        value_types.seconds,
    ),
    Key(
        "keep_alive_max_attempt",
        "heartbeats that may be missing before a peer is given up, 5 by default; --silence-s wins",
        "3",
        ("timing.silence_s",),
        value_types.some,
    ),
    Key("is_host", "1 if this worker is the first coordinator", "1", ("rendezvous.is_host",), value_types.truth),
    Key("heartbeat_timeout", "a heartbeat is not a request; nothing waits for it", "7"),
    Key("close_timeout", "a job that has ended is closed at once", "7"),
    Key("pend_timeout", "a spare worker waits as long as the job runs", "3600"),
    Key("read_timeout", _STORE, "60"),
    Key("store_type", _STORE, "tcp"),
    Key("use_libuv", _STORE, "1"),
    Key("cas_backoff_max_seconds", _STORE, "1"),
    Key("rank", "use --node-rank", "1"),
    Key("etcd_prefix", _ETCD, "/torchelastic/p2p"),
    *(Key(name, _ETCD, "http") for name in ("protocol", "ssl_cert", "ssl_cert_key", "ca_cert")),
    *(Key(name, _ETCD, "http") for name in ("cert", "key", "cacert")),
)
_BY_NAME = {key.name: key for key in KEYS}


def understand(text: str, source: str) -> tuple[Mapping[str, object], tuple[StartNote, ...]]:
    """Read the keys with an effect; return their values and a note for each other key. Raises BadCommand.

    text: k=v,… An extra comma is ignored. source: the option or variable that gave it.
    """
    found: dict[str, object] = {}
    notes: list[StartNote] = []
    for item in filter(None, (item.strip() for item in text.split(","))):
        name, _, value = (part.strip() for part in item.partition("="))
        key = _BY_NAME.get(name)
        if key is None:
            raise BadCommand(f"{source} has no key {name!r}; it has {', '.join(sorted(_BY_NAME))}")
        if not value:
            raise BadCommand(f"{source}: {name} needs a value, as in {name}={key.example}")
        if not key.sets:
            notes.append(StartNote(f"{source} {name}", Warned.NO_EFFECT, key.text))
            continue
        try:
            parsed = key.read(value)
        except value_types.BadValue as error:
            raise BadCommand(f"{source}: {name} is {value!r}: {error}") from error
        if found.setdefault(key.same or name, parsed) != parsed:
            raise BadCommand(f"{source} says {key.same or name} twice, and not the same")
    return found, tuple(notes)

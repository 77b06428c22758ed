"""The readers that meet foreign bytes first, each with inputs that it takes and the errors that it may raise."""

from __future__ import annotations

import json
from collections.abc import Callable

from hack.fuzz.cluster_targets import CLUSTER_TARGETS
from hack.fuzz.target import Target
from turnout.launcher.checkpoint.format import arena_layout, daemon_messages, manifest, replication_messages
from turnout.launcher.checkpoint.format.safetensors_layout import Spec, head_of, pack, read_head
from turnout.launcher.errors import LauncherError
from turnout.launcher.framing import PREFIX_BYTES, FrameSplitter, body_bytes, frame
from turnout.launcher.health import probe_messages
from turnout.launcher.health.stack_traces import parse as stacks
from turnout.launcher.model import ElasticSpec, Member, RestartBudget
from turnout.launcher.model import Record as Round
from turnout.launcher.rendezvous import messages, round_lock
from turnout.scheduler_ext import extender_v1
from turnout.scheduler_ext.errors import ExtenderError
from turnout.topology.accept import draw
from turnout.topology.configmap_keys import TEXT_KEY, YAML_KEY

_MEMBER = Member("w0/1", "w0", "h0", "10.0.0.1", 29_400, 8, ("spine", "leaf"))
_JOIN = messages.Join(2, "job", b"n" * 16, b"p" * 32, _MEMBER, ElasticSpec(), messages.LastWorld(), RestartBudget())
_RECORD = arena_layout.Record(7, 3, 1, 0, 2, arena_layout.PAGE_BYTES, 1 << 20)
_OFFER = replication_messages.Offer(0, 3, replication_messages.packed(_RECORD), b"12345678", -1)
_POD = {"metadata": {"name": "a-0", "namespace": "team", "uid": "u", "labels": {"a": "b"}}, "spec": {"containers": []}}
_NOTE = manifest.Note("job", 3, 1, 2, manifest.Shard("shard-0", 0, 4_096, 64, manifest.sum_of_sums((1,)), (1,)))
_STACK = 'Current thread 0x01 (most recent call first):\n  File "train.py", line 7 in step\n'
_REPORT = probe_messages.Report(next(iter(probe_messages.Stage)))
_ROUND = round_lock.seal(Round("job", 3, "w0/1", "10.0.0.1", 5))


def _said(*words: messages.Message) -> tuple[bytes, ...]:
    return tuple(messages.encode(each) for each in words)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _split(data: bytes) -> None:
    splitter = FrameSplitter(1 << 20)
    for at in range(0, len(data), 7):
        list(splitter.split(data[at : at + 7]))


def _peer(data: bytes) -> object:
    head, body = data[: replication_messages.HEAD_BYTES], data[replication_messages.HEAD_BYTES :]
    body_bytes(head.ljust(PREFIX_BYTES, b"\0"), 1 << 20)
    return replication_messages.read(head, body)


def _map(key: str) -> Callable[[bytes], object]:
    return lambda data: draw({key: data.decode("utf-8", "replace")})


TARGETS = (
    Target("frames", (frame(b"body"), frame(b"a") + frame(b"bc")), _split, (LauncherError,)),
    Target(
        "a member's word",
        _said(_JOIN, messages.Heartbeat(3), messages.Ready(1, 5, ("a",)), messages.Ask()),
        messages.read_at_coordinator,
        (LauncherError,),
    ),
    Target(
        "a coordinator's word",
        _said(
            messages.Challenge(2, b"n" * 16),
            messages.Formed(2, 1, 0, 1, 0, 1, "10.0.0.1", 5, "member_lost", RestartBudget()),
            messages.Roster(1, (_MEMBER,)),
            messages.Redirect("a", "10.0.0.1", 1),
        ),
        messages.read_at_member,
        (LauncherError,),
    ),
    Target(
        "a training process's word",
        tuple(
            daemon_messages.encode(each)[PREFIX_BYTES:]
            for each in (daemon_messages.Hello("job", "w0", 0, 0, 1, 1), daemon_messages.Save(0, 1, 2, "/a"))
        ),
        daemon_messages.read_at_daemon,
        (LauncherError,),
    ),
    Target(
        "another daemon's word",
        (replication_messages.encode(_OFFER), replication_messages.encode(replication_messages.Fetch(3, 1, 0, 2))),
        _peer,
        (LauncherError,),
    ),
    Target(
        "a record of an arena",
        (replication_messages.packed(_RECORD),),
        replication_messages.unpacked,
        (LauncherError,),
    ),
    Target(
        "an arena's first page",
        (arena_layout.identity_page(arena_layout.Identity("job", "w0", 0, "boot", 2)),),
        arena_layout.read_identity,
        (LauncherError,),
    ),
    Target("a note in storage", (manifest.write_note(_NOTE),), manifest.read_note, (LauncherError,)),
    Target(
        "the head of a shard",
        (head_of(pack([Spec("a", "U8", (4,)), Spec("b", "F32", (2, 2))]), {"step": "3"}),),
        read_head,
        (LauncherError,),
    ),
    Target("a round's record", (_ROUND,), round_lock.unseal, (LauncherError,)),
    Target("stack traces", (_STACK.encode(), stacks.write("py-spy", _STACK, "S")), stacks.read, (LauncherError,)),
    Target("a probe's report", (probe_messages.encode(_REPORT),), probe_messages.read_report, (LauncherError,)),
    Target(
        "filter and prioritize",
        (
            _json({"Pod": _POD, "Nodes": None, "NodeNames": ["n1", "n2"]}),
            _json({"pod": _POD, "nodes": {"items": [_POD]}}),
        ),
        extender_v1.decode_args,
        (ExtenderError,),
    ),
    Target(
        "preempt",
        (_json({"Pod": _POD, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}}),),
        extender_v1.decode_preempt,
        (ExtenderError,),
    ),
    Target(
        "a map of lines",
        (b"host h[0-3] leaf1\nswitch leaf1 spine\n", b"h0 leaf1 spine\nh1 leaf2 spine # a\n"),
        _map(TEXT_KEY),
    ),
    Target(
        "a map of a tree",
        (b"spine:\n  leaf1: [h0, h1]\n  leaf2:\n    - h[2-3]\n", b"a: &x [h0]\nb: *x\n"),
        _map(YAML_KEY),
    ),
    *CLUSTER_TARGETS,
)

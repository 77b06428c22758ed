"""The readers that meet foreign bytes first, each with inputs that it takes and the errors that it may raise."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from turnout.autoscaler import memory
from turnout.autoscaler.model import Reason, Step
from turnout.autoscaler.node_faults import model as node_record
from turnout.autoscaler.reporting import decision_log, usage
from turnout.controllers import scale_plan
from turnout.jobs.model import JobKey, Sizes
from turnout.kube import node_health
from turnout.kube.objects import Pod
from turnout.kube.status import UNREADABLE
from turnout.kube.watch_events import KindDecoder
from turnout.launcher import coordinator_messages
from turnout.launcher.checkpoint.format import arena_layout, daemon_messages, manifest
from turnout.launcher.checkpoint.format.shard_file import Spec, head_of, pack, read_head
from turnout.launcher.checkpoint.replication import peer_connection
from turnout.launcher.errors import LauncherError
from turnout.launcher.framing import PREFIX_BYTES, FrameSplitter, body_bytes, frame
from turnout.launcher.health import probe_messages
from turnout.launcher.health.stack_traces import parse as stacks
from turnout.launcher.model import ElasticSpec, Member, RestartBudget
from turnout.launcher.model import RoundRecord as Round
from turnout.launcher.rendezvous import arbiter
from turnout.scheduler_ext.model import ExtenderError
from turnout.scheduler_ext.wire import extender_v1
from turnout.topology.map_update import draft_map
from turnout.topology.names import TEXT_KEY, YAML_KEY

GPU, NOW_S = "nvidia.com/gpu", 1_767_225_600.0
_OBJECT = {
    "metadata": {"name": "a-0", "namespace": "team", "uid": "u", "resourceVersion": "7"},
    "spec": {"nodeName": "n"},
}
_GONE = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
_JOB = JobKey("Job", "team", "bert")
_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_TERMS = memory.Terms(2, Sizes(2, doubles=True), {"turnout.dev/min-workers": "2"}, resizable=True)
_USAGE = usage.UsageSums(
    900.0, {usage.UsedBy("q", str(_JOB), "ann"): 60.0}, lent={("q", "r"): 4.0}, idle={("q", "reserved"): 2.0}
)
_STRIKES = (memory.Strike(_JOB, 2, 10.0, 50.0), memory.Strike("team", 1, 0.0, 9.5))
_PROOF = node_record.Proof("team/a-0", "u", _NOW)
_STATE = next(iter(node_record.FaultState))
_NODE = node_record.Record(_STATE, _NOW, _NOW, times=1, proofs=(_PROOF,), handled_by_namespace=(("team", _NOW),))
_FAULTY = node_health.NodeReport(node_health.CheckResult.FAULTY, _NOW, 3, "w0", 2, "bert", "n", "slow", "x")
_FINE = node_health.NodeReport(node_health.CheckResult.FINE, _NOW, 1, "w1", compute_s=0.5)
_PLAN = {"ownerJob": "bert", "replicaResourceSpecs": {"worker": {"replicas": 3, "resource": {"cpu": "1"}}}}
_ELASTIC = {"metadata": {"name": "bert"}, "spec": {"replicaSpecs": {"worker": {"replicas": 2}}}}


_MEMBER = Member("w0/1", "w0", "h0", "10.0.0.1", 29_400, 8, ("spine", "leaf"))
_JOIN = coordinator_messages.Join(
    2, "job", b"n" * 16, b"p" * 32, _MEMBER, ElasticSpec(), coordinator_messages.LastWorld(), RestartBudget()
)
_RECORD = arena_layout.ShardRecord(7, 3, 1, 0, 2, arena_layout.PAGE_BYTES, 1 << 20)
_OFFER = peer_connection.Offer(0, 3, peer_connection.pack_record(_RECORD), b"12345678", -1)
_POD = {"metadata": {"name": "a-0", "namespace": "team", "uid": "u", "labels": {"a": "b"}}, "spec": {"containers": []}}
_NOTE = manifest.ShardNote(
    "job", 3, 1, 2, manifest.StoredShard("shard-0", 0, 4_096, 64, manifest.sum_of_sums((1,)), (1,))
)
_STACK = 'Current thread 0x01 (most recent call first):\n  File "train.py", line 7 in step\n'
_REPORT = probe_messages.Report(next(iter(probe_messages.ProbeStage)))
_ROUND = arbiter.seal(Round("job", 3, "w0/1", "10.0.0.1", 5))


@dataclass(frozen=True, slots=True)
class Reader:
    """One reader. corpus: inputs that it takes. refuses: the errors that it may raise; any other is a defect."""

    name: str
    corpus: tuple[bytes, ...]
    read: Callable[[bytes], object]
    refuses: tuple[type[Exception], ...] = ()


class NoObject(Exception):
    """No API server takes these bytes as an object."""


def _object(data: bytes) -> dict[str, Any]:
    """Return what an API server would take as an object. Raises NoObject for all else."""
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise NoObject from error


def _plan(data: bytes) -> object:
    """Carry out a plan whose spec this is: an API server lets only an object in there."""
    plan = {"metadata": {"name": "plan", "labels": {"scale-type": "manual"}}, "spec": _object(data)}
    return scale_plan.is_pending(plan), scale_plan.owner_of(plan), scale_plan.scale_job(plan, _ELASTIC, NOW_S)


def _memory(data: bytes) -> object:
    """Read the memory of an earlier leader, and write it again. data: the three texts of its ConfigMap, a line each."""
    texts = data.decode("utf-8", "replace").split("\n", 2)
    return memory.encode(memory.read(dict(zip(("terms", "strikes", "at"), texts, strict=False)), NOW_S), NOW_S)


def _text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(data.decode("utf-8", "replace"))


def _encoded_messages(*words: coordinator_messages.Message) -> tuple[bytes, ...]:
    return tuple(coordinator_messages.encode(each) for each in words)


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _split(data: bytes) -> None:
    splitter = FrameSplitter(1 << 20)
    for at in range(0, len(data), 7):
        list(splitter.split(data[at : at + 7]))


def _peer(data: bytes) -> object:
    head, body = data[: peer_connection.HEAD_BYTES], data[peer_connection.HEAD_BYTES :]
    body_bytes(head.ljust(PREFIX_BYTES, b"\0"), 1 << 20)
    return peer_connection.read(head, body)


def _map(key: str) -> Callable[[bytes], object]:
    return lambda data: draft_map({key: data.decode("utf-8", "replace")})


READERS = (
    Reader("frames", (frame(b"body"), frame(b"a") + frame(b"bc")), _split, (LauncherError,)),
    Reader(
        "a member's word",
        _encoded_messages(
            _JOIN,
            coordinator_messages.Heartbeat(3),
            coordinator_messages.Ready(1, 5, ("a",)),
            coordinator_messages.GetRoster(),
        ),
        coordinator_messages.read_at_coordinator,
        (LauncherError,),
    ),
    Reader(
        "a coordinator's word",
        _encoded_messages(
            coordinator_messages.Challenge(2, b"n" * 16),
            coordinator_messages.Formed(2, 1, 0, 1, 0, 1, "10.0.0.1", 5, "member_lost", RestartBudget()),
            coordinator_messages.Roster(1, (_MEMBER,)),
            coordinator_messages.Redirect("a", "10.0.0.1", 1),
        ),
        coordinator_messages.read_at_member,
        (LauncherError,),
    ),
    Reader(
        "a training process's word",
        tuple(
            daemon_messages.encode(each)[PREFIX_BYTES:]
            for each in (daemon_messages.Hello("job", "w0", 0, 0, 1, 1), daemon_messages.Save(0, 1, 2, "/a"))
        ),
        daemon_messages.read_at_daemon,
        (LauncherError,),
    ),
    Reader(
        "another daemon's word",
        (peer_connection.encode(_OFFER), peer_connection.encode(peer_connection.Fetch(3, 1, 0, 2))),
        _peer,
        (LauncherError,),
    ),
    Reader(
        "a record of an arena",
        (peer_connection.pack_record(_RECORD),),
        peer_connection.unpack_record,
        (LauncherError,),
    ),
    Reader(
        "an arena's first page",
        (arena_layout.identity_page(arena_layout.Identity("job", "w0", 0, "boot", 2)),),
        arena_layout.read_identity,
        (LauncherError,),
    ),
    Reader("a note in storage", (manifest.write_note(_NOTE),), manifest.read_note, (LauncherError,)),
    Reader(
        "the head of a shard",
        (head_of(pack([Spec("a", "U8", (4,)), Spec("b", "F32", (2, 2))]), {"step": "3"}),),
        read_head,
        (LauncherError,),
    ),
    Reader("a round's record", (_ROUND,), arbiter.unseal, (LauncherError,)),
    Reader("stack traces", (_STACK.encode(), stacks.write("py-spy", _STACK, "S")), stacks.read, (LauncherError,)),
    Reader("a probe's report", (probe_messages.encode(_REPORT),), probe_messages.read_report, (LauncherError,)),
    Reader(
        "filter and prioritize",
        (
            _json({"Pod": _POD, "Nodes": None, "NodeNames": ["n1", "n2"]}),
            _json({"pod": _POD, "nodes": {"items": [_POD]}}),
        ),
        extender_v1.decode_args,
        (ExtenderError,),
    ),
    Reader(
        "preempt",
        (_json({"Pod": _POD, "NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}}),),
        extender_v1.decode_preempt,
        (ExtenderError,),
    ),
    Reader(
        "a map of lines",
        (b"host h[0-3] leaf1\nswitch leaf1 spine\n", b"h0 leaf1 spine\nh1 leaf2 spine # a\n"),
        _map(TEXT_KEY),
    ),
    Reader(
        "a map of a tree",
        (b"spine:\n  leaf1: [h0, h1]\n  leaf2:\n    - h[2-3]\n", b"a: &x [h0]\nb: *x\n"),
        _map(YAML_KEY),
    ),
    Reader(
        "a line of a watch",
        (
            _json({"type": "ADDED", "object": _OBJECT}),
            _json({"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}),
            _json({"type": "ERROR", "object": _GONE}),
        ),
        KindDecoder(Pod).line,
    ),
    Reader(
        "a page of a list",
        (_json({"metadata": {"resourceVersion": "9"}, "items": [_OBJECT, _OBJECT]}),),
        KindDecoder(Pod).page,
        UNREADABLE,
    ),
    Reader(
        "a ScalePlan",
        (_json(_PLAN), _json({**_PLAN, "removePods": [{"name": "a"}]})),
        _plan,
        (NoObject,),
    ),
    Reader(
        "the autoscaler's memory",
        ("\n".join(memory.encode(memory.Memory({"u": _TERMS}, _STRIKES), NOW_S).values()).encode(),),
        _memory,
    ),
    Reader(
        "a line of a decision log",
        (decision_log.encode_decisions([Step(_JOB, 2, 4, Reason.MAKES_ROOM, "2 of 4", _JOB)], NOW_S),),
        decision_log.read_line,
        (decision_log.BadLine,),
    ),
    Reader(
        "a line about usage in a decision log",
        (decision_log.encode_usage(decision_log.usage_lines(_USAGE, NOW_S)),),
        decision_log.read_usage_line,
        (decision_log.BadLine,),
    ),
    Reader(
        "a verdict on a node",
        (node_health.encode_report(_FAULTY).encode(), node_health.encode_report(_FINE).encode()),
        _text(node_health.decode_report),
        (node_health.BadNodeReport,),
    ),
    Reader(
        "a node's record",
        (node_record.record_text(_NODE).encode(),),
        _text(node_record.read_record),
        (node_record.BadNodeRecord,),
    ),
)

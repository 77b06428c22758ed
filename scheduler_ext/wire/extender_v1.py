"""Translate extender/v1 of kube-scheduler and koord-scheduler: bytes to requests, answers to bytes.

The request bounds the size of its answer. An answer holds only names from the request, each once, and short messages:
at most twice the size of the request and 1 KiB. `planner/answers.py` decides the answer.

A value costs a thousand times the memory of its bytes: `{"":{}}` has seven bytes and becomes two objects. So the
number of values in a pod is bounded, too.

Source: docs/facts/extender.md 1.1, 1.5, 1.6; kube-scheduler extender/v1 types.go
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from turnout.kube.objects import Pod
from turnout.kube.times import rfc3339_micro
from turnout.scheduler_ext.model import Answer, BadRequest, Victims

MAX_BYTES = 3 << 20  # of an AdmissionReview, or of a pod in another request: as much as an API server takes


MAX_VALUES = 60_000  # numbers, texts, lists and objects together


def check_size(raw: bytes, what: str) -> None:
    """Raise BadRequest for JSON of more than MAX_BYTES bytes or about MAX_VALUES values. what: its name, for the
    message.

    Values are counted by the characters before and between them. Such characters inside strings count too, so the count
    is never too low. raw: the JSON, which is not decoded.
    """
    if len(raw) > MAX_BYTES:
        raise BadRequest(f"{what} has {len(raw)} bytes: at most {MAX_BYTES} bytes are read")
    values = 1 + sum(raw.count(each) for each in (b",", b"{", b"["))
    if values > MAX_VALUES:
        raise BadRequest(f"{what} has {values} values, about: at most {MAX_VALUES} values are read")


MAX_FIELDS = 16  # of the outer object; extender/v1 has three


MAX_NAMES = 200_000  # four times the largest cluster that we speak for


MAX_MESSAGE_BYTES = 256


MAX_LOOKUPS = 4  # names are looked up one by one; for more names a set is built


LONG_LIST = 1024  # names; a refusal of more names is explained for MAX_EXPLAINED_NAMES of them only
MAX_EXPLAINED_NAMES = 64
MAX_SCORE = 10  # extender/v1 MaxExtenderPriority


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeArgs:
    """A decoded ExtenderArgs."""

    pod: Pod
    names: Sequence[str]  # of the nodes
    raw_nodes: bytes  # the JSON of NodeNames or Nodes, as received
    size_bytes: int  # of the request's body
    nodes: Sequence[msgspec.Raw] | None = None  # the JSON of each node, if Nodes came


@dataclass(frozen=True, slots=True)
class PreemptArgs:
    """A decoded ExtenderPreemptionArgs. Only the UIDs of the victims are read, in both forms of the request."""

    pod: Pod
    victims: Mapping[str, Victims]  # by node
    size_bytes: int  # of the request's body


class _Meta(msgspec.Struct):
    name: str = ""
    uid: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)


class _Priority(msgspec.Struct, rename="pascal", gc=False):
    """One HostPriority."""

    host: str
    score: int


_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])


_TEXT = msgspec.json.Decoder(str)


_COUNT = msgspec.json.Decoder(Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)])  # an int64 that counts


_NAMES = msgspec.json.Decoder(list[str])


_RAWS = msgspec.json.Decoder(list[msgspec.Raw])


_OBJECT = msgspec.json.Decoder(_Object)


_POD = msgspec.json.Decoder(Pod)


_KEY = re.compile(rb'[ \t\r\n]*("(?:[^"\\]|\\.)*")[ \t\r\n]*:[ \t\r\n]*')


_COMMA = re.compile(rb"[ \t\r\n]*[,}]")


_PLACE = re.compile(r"at `([^`]*)`")


def decode_args(body: bytes) -> NodeArgs:
    """Decode the body of filter or prioritize. If both NodeNames and Nodes are given, NodeNames counts.

    Raises BadRequest, which names the fault and quotes nothing: for a body that is no such request, that has neither
    list, a pod too large for `check_size`, or more than MAX_NAMES NodeNames. The number of Nodes is not limited.
    """
    fields = _outer_fields(body)
    pod = _pod(fields)
    if (given := fields.get("nodenames")) is not None:
        # A body shorter than MAX_NAMES empty names cannot hold more names. Only a longer body is counted.
        if len(given) >= 3 * MAX_NAMES and given.count(b",") >= MAX_NAMES:
            raise BadRequest(f"NodeNames holds more than {MAX_NAMES} names")
        names = _decode(_NAMES, given, "NodeNames")
        return NodeArgs(pod, names, given, len(body))
    if (given := fields.get("nodes")) is not None:
        items = _lower_case_fields(given, "Nodes").get("items")
        nodes = [] if items is None else _decode(_RAWS, items, "Nodes.items")
        names = [_decode(_OBJECT, node, "Nodes.items").metadata.name for node in nodes]
        return NodeArgs(pod, names, given, len(body), nodes)
    raise BadRequest("neither NodeNames nor Nodes is given")


def decode_preempt(body: bytes) -> PreemptArgs:
    """Decode the body of preempt, with uids only or with whole pods; if both are given, the uids count.

    Raises BadRequest, which names the fault and quotes nothing: for a body that is no such request, that has no
    victims in either form, or a pod too large for `check_size`.
    """
    fields = _outer_fields(body)
    pod = _pod(fields)
    for key, what in (
        ("nodenametometavictims", "NodeNameToMetaVictims"),
        ("nodenametovictims", "NodeNameToVictims"),
    ):
        if (given := fields.get(key)) is not None:
            by_node = _decode(_FIELDS, given, what)
            return PreemptArgs(pod, {node: _victims(raw, what) for node, raw in by_node.items()}, len(body))
    raise BadRequest("neither NodeNameToVictims nor NodeNameToMetaVictims is given")


def encode_filter(args: NodeArgs, answer: Answer) -> bytes:
    """Encode an ExtenderFilterResult in the form of the request: the nodes that stay, and for others why not.

    If the answer has no opinion, the request's own list goes back. Nodes that the request does not name are left out.
    """
    if not answer.has_opinion:
        return _encode_filter_result(args, args.raw_nodes, b"null", b"null")
    named = answer.nodes or ()
    requested = _requested_names(args, named)
    nodes = {name: "" for name in named if name in requested}
    no_room, forbidden = (
        {name: why for name, why in texts.items() if name not in nodes} for texts in failures(answer, args.names)
    )
    chosen = _encode_nodes(args, [*nodes])
    # A result's fixed part is under 128 bytes. Every name fits, since each was in the request; the rest of the bound is
    # shared by the messages, an entry being `"name":"message",`.
    failed = [*forbidden, *no_room]
    spare = 2 * args.size_bytes + 1024 - 128 - len(chosen) - len(msgspec.json.encode(failed))
    each = min(MAX_MESSAGE_BYTES, max(0, spare // max(1, len(failed)) - len(b':""')))
    return _encode_filter_result(args, chosen, _encode_failures(no_room, each), _encode_failures(forbidden, each))


def failures(answer: Answer, names: Sequence[str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Return (name -> text for nodes on which a preemption may help, name -> text for nodes where nothing helps).

    answer: with an opinion. names: the nodes of the request; nodes that the answer keeps may be in it. Without a
    refusal both are empty if any node is kept; else nothing helps, because the pod is planned on another node. An
    answer with `refused_s` has its time in the text, and nothing helps. If `preemption_nodes` is None, a preemption may
    help on every name.

    At most MAX_EXPLAINED_NAMES nodes are in the second mapping, unless `preemption_nodes` counts and the request has at
    most LONG_LIST names. A node in neither mapping is one where nothing helps for kube-scheduler 1.35 and newer; an
    older one may try a preemption there, and asks the preempt verb about it.
    """
    if answer.refusal is None:
        return {}, {} if answer.nodes else dict.fromkeys(
            names[:MAX_EXPLAINED_NAMES], "the pod is planned on another node"
        )
    reason, detail = answer.refusal.reason.value, answer.refusal.detail
    if answer.refused_s is not None:
        text = f"{reason} at {rfc3339_micro(answer.refused_s)}: {detail}"
        return {}, dict.fromkeys(names[:MAX_EXPLAINED_NAMES], text)
    text = f"{reason}: {detail}"
    if (helpful := answer.preemption_nodes) is None:
        return dict.fromkeys(names, text), {}
    explained = names if len(names) <= LONG_LIST else names[:MAX_EXPLAINED_NAMES]
    no_room = {name: text for name in names if name in helpful}
    return no_room, {name: text for name in explained if name not in no_room}


def encode_prioritize(args: NodeArgs, scores: Collection[tuple[str, int]]) -> bytes:
    """Encode a HostPriorityList with scores 1..10 for names of the request; other names and scores below 1 are left
    out.

    If the answer would exceed twice the request, only the best scores are sent.
    """
    requested = _requested_names(args, [host for host, _ in scores])
    allowed = {host: min(MAX_SCORE, score) for host, score in scores if score > 0 and host in requested}
    max_bytes = 2 * args.size_bytes + 1024
    answer = _encode_priorities(allowed.items())
    if len(answer) <= max_bytes:
        return answer
    best = sorted(allowed.items(), key=lambda item: -item[1])
    longest = max(len(_encode_priorities([item])) for item in best)
    return _encode_priorities(best[: max_bytes // longest])


def encode_preempt(args: PreemptArgs, chosen: Mapping[str, Victims]) -> bytes:
    """Encode an ExtenderPreemptionResult: only nodes and victims of the request; a node without any victim is left out.

    chosen: node -> victims.
    """
    result = {}
    for node, victims in chosen.items():
        offered = args.victims.get(node)
        if offered is None:
            continue
        uids = [uid for uid in dict.fromkeys(victims.uids) if uid in offered.uids]
        if uids:
            violations = max(0, min(victims.pdb_violations, offered.pdb_violations))
            result[node] = {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
    return msgspec.json.encode({"NodeNameToMetaVictims": result})


def encode_error(reason: str) -> bytes:
    """Encode a short refusal. kube-scheduler reads the status alone; the text is for a person."""
    return b'{"Error":%b}' % msgspec.json.encode(clip(reason, MAX_MESSAGE_BYTES))


def clip(text: str, limit_bytes: int) -> str:
    """Return the beginning of a message that takes at most `limit_bytes` bytes between the quotes of a JSON string.

    A double quote becomes a single one, a backslash a slash, and an unprintable character a question mark.
    """
    plain = text.replace('"', "'").replace("\\", "/").encode("utf-8", "replace")
    if len(plain) > limit_bytes:
        plain = plain[:limit_bytes]
    printed = plain.decode("utf-8", "ignore")
    # A replaced character is never longer than what it stood for.
    return printed if printed.isprintable() else "".join(c if c.isprintable() else "?" for c in printed)


def _outer_fields(body: bytes) -> dict[str, bytes]:
    """Split the outer object into its fields: name in lower case, since Go ignores case -> JSON of the value.

    Fields that are null are left out. Raises BadRequest for a body that is no JSON object, has more than MAX_FIELDS
    fields, or gives a field twice.
    """
    if not body.isascii():
        try:
            body.decode("utf-8")
        except UnicodeDecodeError:
            raise BadRequest("the body is not UTF-8") from None
    fields = _decode(_FIELDS, body, "the body")
    if len(fields) > MAX_FIELDS:
        raise BadRequest(f"the body has more than {MAX_FIELDS} fields")
    position, found = body.index(b"{") + 1, dict[str, bytes]()
    while (match := _KEY.match(body, position)) is not None:
        key = _TEXT.decode(match[1])
        value = bytes(fields.get(key, b""))
        # The decoder keeps the last of equal names: an earlier one has another value, or is found twice.
        if key.lower() in found or not body.startswith(value, match.end()):
            raise BadRequest("a field is given twice")
        found[key.lower()] = value
        after = _COMMA.match(body, match.end() + len(value))
        if after is None:
            raise BadRequest("a field is given twice")
        position = after.end()
    if len(found) != len(fields):
        raise BadRequest("a field is given twice")
    return {key: value for key, value in found.items() if value != b"null"}


def _decode(decoder: msgspec.json.Decoder[T], raw: bytes | msgspec.Raw, what: str) -> T:
    """Decode a value. Raises BadRequest, which names the fault and its place, and quotes nothing.

    what: the name of the value, for the message.
    """
    try:
        return decoder.decode(raw)
    except RecursionError:
        raise BadRequest(f"{what} is nested too deep") from None
    except msgspec.ValidationError as error:
        place = _PLACE.search(str(error))
        raise BadRequest(f"{what} has a value of the wrong type at {place[1] if place else '$'}") from None
    except ValueError:  # malformed, cut off, trailing bytes, or not UTF-8
        raise BadRequest(f"{what} is not JSON") from None


def _pod(fields: Mapping[str, bytes]) -> Pod:
    """Decode the pod of a request. Raises BadRequest if it is missing, too large or invalid."""
    if "pod" not in fields:
        raise BadRequest("no Pod is given")
    check_size(fields["pod"], "Pod")
    return _decode(_POD, fields["pod"], "Pod")


def _lower_case_fields(raw: bytes | msgspec.Raw, what: str) -> dict[str, msgspec.Raw]:
    """Decode an inner object with names in lower case, without nulls. Of equal names the last one counts, as in Go.

    what: its place, for messages. Raises BadRequest if it is no object.
    """
    return {key.lower(): value for key, value in _decode(_FIELDS, raw, what).items() if bytes(value) != b"null"}


def _victims(raw: msgspec.Raw, what: str) -> Victims:
    """Decode the victims on one node: pod uids, and how many disruption budgets they violate (0 if not stated).

    what: their place, for messages. Raises BadRequest if a value has the wrong type, or the count is negative.
    """
    fields = _lower_case_fields(raw, what)
    violations = _decode(_COUNT, fields["numpdbviolations"], what) if "numpdbviolations" in fields else 0
    pods = _decode(_RAWS, fields["pods"], what) if "pods" in fields else []
    return Victims(tuple(_uid(pod, what) for pod in pods), violations)


def _uid(raw: msgspec.Raw, what: str) -> str:
    """Return the UID of a MetaPod, or of a whole pod. what: its place, for messages. Raises BadRequest if it is
    neither.
    """
    fields = _lower_case_fields(raw, what)
    return _decode(_TEXT, fields["uid"], what) if "uid" in fields else _decode(_OBJECT, raw, what).metadata.uid


def _requested_names(args: NodeArgs, named: Collection[str]) -> Collection[str]:
    """Return those of some names that the request also holds.

    args: the request. named: the names; with at most MAX_LOOKUPS names their order stays.
    """
    if len(named) <= MAX_LOOKUPS:
        return [name for name in named if name in args.names]
    return set(named).intersection(args.names)


def _encode_priorities(scores: Iterable[tuple[str, int]]) -> bytes:
    return msgspec.json.encode([_Priority(host, score) for host, score in scores])


def _encode_nodes(args: NodeArgs, names: Sequence[str]) -> bytes:
    """Encode nodes in the form of the request: names, or whole Node objects.

    Raises KeyError for a node that it lacks.
    """
    if args.nodes is None:
        return msgspec.json.encode(names)
    by_name = dict(zip(args.names, args.nodes, strict=True))
    return b'{"metadata":{},"items":[' + b",".join(bytes(by_name[name]) for name in names) + b"]}"


def _encode_failures(why_by_name: Mapping[str, str], limit_bytes: int) -> bytes:
    clipped = {why: clip(why, limit_bytes) for why in set(why_by_name.values())}  # few messages, many names
    return msgspec.json.encode({name: clipped[why] for name, why in why_by_name.items()})


def _encode_filter_result(args: NodeArgs, chosen: bytes, no_room: bytes, forbidden: bytes) -> bytes:
    """Encode the answer to a filter request. chosen: encoded nodes. no_room, forbidden: encoded node -> reason."""
    nodes, names = (b"null", chosen) if args.nodes is None else (chosen, b"null")
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}' % (
        nodes,
        names,
        no_room,
        forbidden,
    )

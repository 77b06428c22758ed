"""extender/v1 as bytes: what kube-scheduler writes is read, and an answer stays in bounds whatever it says."""

import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnout.scheduler_ext.model import Answer, BadRequest, EventReason, Victims
from turnout.scheduler_ext.wire.extender_v1 import (
    MAX_NAMES,
    clip,
    decode_args,
    decode_preempt,
    encode_error,
    encode_filter,
    encode_preempt,
    encode_prioritize,
)
from turnout.topology.model import Refusal

calm = settings(deadline=None)  # machines are noisy
POD = {"metadata": {"name": "bert-0", "namespace": "ml", "uid": "u1"}, "spec": {"containers": [{"name": "c"}]}}


def names_body(names, pod=POD):
    """Return what kube-scheduler posts with nodeCacheCapable true: Go's json.Marshal writes no blanks."""
    return json.dumps({"Pod": pod, "Nodes": None, "NodeNames": list(names)}, separators=(",", ":")).encode()


def nodes_body(names, pod=POD):
    """Return what kube-scheduler posts with nodeCacheCapable false: whole nodes."""
    items = [{"metadata": {"name": name, "labels": {"n": str(n)}}, "status": {}} for n, name in enumerate(names)]
    return json.dumps({"Pod": pod, "Nodes": {"metadata": {}, "items": items}, "NodeNames": None}).encode()


def test_names_are_read_with_the_pod():
    args = decode_args(names_body(["a", "b"]))
    assert (args.pod.metadata.name, args.pod.metadata.uid, list(args.names)) == ("bert-0", "u1", ["a", "b"])


def test_whole_nodes_are_read_by_their_names():
    args = decode_args(nodes_body(["a", "b"]))
    assert list(args.names) == ["a", "b"]


@pytest.mark.parametrize("body", [
    pytest.param(b'{"pod":{},"nodenames":["a"]}', id="all small"),
    pytest.param(b'{"POD":{},"nodeNames":["a"]}', id="mixed"),
    pytest.param(b' {\n "Pod" : {} ,\t"Nodes" : null , "NodeNames" : [ "a" ] }\r\n', id="with blanks"),
    pytest.param(b'{"Pod":{},"NodeNames":["a"],"Later":{"x":[1]}}', id="with a field of a later version"),
    pytest.param(b'{"P\\u006fd":{},"NodeNames":["\\u0061"]}', id="escaped"),
])  # fmt: skip
def test_names_of_fields_are_taken_as_go_takes_them(body):
    assert list(decode_args(body).names) == ["a"]


def test_of_equal_names_inside_the_pod_the_last_counts_as_in_go():
    assert decode_args(b'{"Pod":{"metadata":{"name":"x","name":"y"}},"NodeNames":[]}').pod.metadata.name == "y"


DEEP = 10**6


@pytest.mark.parametrize(("body", "fault"), [
    pytest.param(b"", "not JSON", id="nothing"),
    pytest.param(b"\xef\xbb\xbf{}", "not JSON", id="a byte order mark"),
    pytest.param(b"null", "wrong type", id="null"),
    pytest.param(b"[]", "wrong type", id="a list"),
    pytest.param(b"{}", "no Pod", id="an empty object"),
    pytest.param(b'{"Pod":null,"NodeNames":["a"]}', "no Pod", id="a null pod"),
    pytest.param(b'{"Pod":{}}', "neither", id="no nodes in any form"),
    pytest.param(b'{"Pod":{},"Nodes":null,"NodeNames":null}', "neither", id="both forms null"),
    pytest.param(b'{"Pod":{},"NodeNames":["a"]', "not JSON", id="cut off"),
    pytest.param(b'{"Pod":{},"NodeNames":["a"]} {"Pod":{}}', "not JSON", id="trailing bytes"),
    pytest.param(b'{"Pod":{"x":NaN},"NodeNames":["a"]}', "not JSON", id="NaN"),
    pytest.param(b'{"Pod":{"x":-Infinity},"NodeNames":["a"]}', "not JSON", id="Infinity"),
    pytest.param(b'{"Pod":{},"Pod":{},"NodeNames":["a"]}', "twice", id="two equal pods"),
    pytest.param(b'{"Pod":{"a":[1,2]},"Pod":{},"NodeNames":["a"]}', "twice", id="two different pods"),
    pytest.param(b'{"Pod":{},"NodeNames":["a"],"pod":{}}', "twice", id="the same name in another case"),
    pytest.param(b'{"Pod":1,"Pod":2,"NodeNames":["a"]}', "twice", id="two pods of one length"),
    pytest.param(b'{"Pod":{"x":"\xff\xfe"},"NodeNames":["a"]}', "UTF-8", id="not UTF-8 in what is skipped"),
    pytest.param(b'{"Pod":{},"NodeNames":["\\ud800"]}', "not JSON", id="half a surrogate"),
    pytest.param(b'{"Pod":{},"NodeNames":["a",null]}', r"NodeNames .* \$\[1\]", id="a null name"),
    pytest.param(b'{"Pod":{},"NodeNames":{"a":1}}', "NodeNames", id="names that are no list"),
    pytest.param(b'{"Pod":{"metadata":{"labels":{"a":1}}},"NodeNames":[]}', "Pod .*labels", id="a label of no text"),
    pytest.param(b'{"Pod":{},"Nodes":{"items":{}}}', "Nodes", id="items that are no list"),
    pytest.param(b'{"Pod":{},"Nodes":{"items":[7]}}', "Nodes", id="an item that is no node"),
    pytest.param(b"[" * DEEP, "too deep|wrong type", id="10^6 brackets"),
    pytest.param(b'{"a":' * DEEP, "too deep", id="10^6 objects"),
    pytest.param(b'{"Pod":{"x":' + b"[" * DEEP + b"]" * DEEP + b'},"NodeNames":[]}', "too deep", id="deep in the pod"),
    pytest.param(b'{"Pod":{},"NodeNames":' + b"[" * DEEP + b"]" * DEEP + b"}", "too deep", id="deep in the names"),
    pytest.param(b'{"Pod":{},"Later":' + b"[" * DEEP + b"]" * DEEP + b"}", "too deep", id="deep in the unknown"),
    pytest.param(b"{" + b",".join(b'"f%d":1' % n for n in range(99)) + b"}", "more than", id="99 fields"),
    pytest.param(b'{"Pod":{},"NodeNames":[' + b'"",' * MAX_NAMES + b'""]}', "more than", id="too many names"),
])  # fmt: skip
def test_a_body_that_cannot_be_answered_is_named(body, fault):
    with pytest.raises(BadRequest, match=fault):
        decode_args(body)


def fault_of(body):
    """Return why a body is refused; None if it is not."""
    try:
        decode_args(body)
    except BadRequest as error:
        return error.fault
    return ""


beginnings = st.text(max_size=60).map(lambda text: names_body(["a"])[:20] + text.encode("utf-8", "ignore"))


@calm
@given(st.binary(max_size=200) | beginnings)
def test_any_bytes_are_read_or_refused(body):
    assert len(encode_error(fault_of(body))) <= 300


@calm
@given(st.data())
def test_a_refusal_quotes_nothing(data):
    secret = "hunter2hunter2"
    body = bytearray(names_body(["n"], {"spec": {"containers": [{"env": [{"name": "P", "value": secret}]}]}}))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    assert "hunter" not in fault_of(bytes(body))


# Answers


def test_what_is_not_narrowed_goes_back_as_it_came():
    body = b'{"Pod":{},"Nodes":null,"NodeNames":["b", "a","\\u0063"]}'
    args = decode_args(body)
    answer = encode_filter(args, Answer())
    assert b'"NodeNames":["b", "a","\\u0063"]' in answer
    assert json.loads(answer)["Nodes"] is None


@pytest.mark.parametrize("body", [names_body, nodes_body])
def test_a_filter_answer_has_the_fields_of_go_and_no_others(body):
    args = decode_args(body(["a", "b", "c"]))
    answer = json.loads(encode_filter(args, Answer(["b"], Refusal(EventReason.NO_ROOM, "full"), {"a"})))
    chosen = {"NodeNames": ["b"], "Nodes": None}
    if body is nodes_body:
        chosen = {
            "NodeNames": None,
            "Nodes": {"metadata": {}, "items": [{"metadata": {"name": "b", "labels": {"n": "1"}}, "status": {}}]},
        }
    assert answer == chosen | {
        "FailedNodes": {"a": "NoRoom: full"},
        "FailedAndUnresolvableNodes": {"c": "NoRoom: full"},
        "Error": "",
    }


@pytest.mark.parametrize(("preemption_nodes", "no_room", "forbidden"), [
    pytest.param({"a", "c"}, {"c"}, {"b"}, id="of the nodes that may help, those that are not kept"),
    pytest.param(None, {"b", "c"}, set(), id="all may help"),
    pytest.param((), set(), {"b", "c"}, id="none may help"),
])  # fmt: skip
def test_a_node_that_is_kept_has_not_failed(preemption_nodes, no_room, forbidden):
    args = decode_args(names_body(["a", "b", "c"]))
    answer = json.loads(encode_filter(args, Answer(["a"], Refusal(EventReason.NO_ROOM, "x"), preemption_nodes)))
    assert answer["NodeNames"] == ["a"]
    assert (set(answer["FailedNodes"]), set(answer["FailedAndUnresolvableNodes"])) == (no_room, forbidden)


def test_an_empty_list_is_an_empty_answer():
    args = decode_args(names_body([]))
    assert json.loads(encode_filter(args, Answer([])))["NodeNames"] == []
    assert json.loads(encode_prioritize(args, [])) == []


def test_prioritize_names_only_what_differs_from_zero():
    args = decode_args(names_body(["a", "b", "c"]))
    assert json.loads(encode_prioritize(args, [("a", 10), ("b", 0), ("c", 3)])) == [
        {"Host": "a", "Score": 10},
        {"Host": "c", "Score": 3},
    ]


@pytest.mark.contract("CS-02")
def test_both_forms_get_the_same_scores():
    scores = [("a", 4), ("c", 9)]
    by_names, by_nodes = decode_args(names_body("abc")), decode_args(nodes_body("abc"))
    assert encode_prioritize(by_names, scores) == encode_prioritize(by_nodes, scores)


def test_scores_that_do_not_fit_are_told_best_first():
    args = decode_args(b'{"Pod":{},"NodeNames":%b}' % json.dumps([f"n{n}" for n in range(1000)]).encode())
    answer = encode_prioritize(args, [(f"n{n}", n % 10 + 1) for n in range(1000)])
    assert len(answer) <= 2 * args.size_bytes + 1024
    scores = {entry["Score"] for entry in json.loads(answer)}
    assert 10 in scores
    assert 1 not in scores


text = st.text(max_size=40) | st.sampled_from(["a", "b", "node-1", 'q"uote', "back\\slash", "\x00", "\u202e", "é" * 30])
some_names = st.lists(text, max_size=30)
reasons = st.text(max_size=600) | st.sampled_from(["", "x" * 500, '"' * 400, "\x00" * 300, "é" * 200, "\ud800"])


@calm
@given(
    names=st.lists(text, max_size=30),
    nodes=some_names,
    detail=reasons,
    helpful=st.none() | st.sets(text),
    form=st.sampled_from([names_body, nodes_body]),
    refused_s=st.none() | st.floats(0, 1e9),
)
def test_a_filter_answer_is_bounded_by_its_request(names, nodes, detail, helpful, form, refused_s):
    body = form(names, {})
    args = decode_args(body)
    refusal = Refusal(EventReason.NO_ROOM, detail)
    encoded = encode_filter(args, Answer(nodes + names[:3], refusal, helpful, refused_s=refused_s))
    answer = json.loads(encoded)
    assert len(encoded) <= 2 * len(body) + 1024
    named = answer["NodeNames"] or [item["metadata"]["name"] for item in (answer["Nodes"] or {"items": []})["items"]]
    failed = [*(answer["FailedNodes"] or {}), *(answer["FailedAndUnresolvableNodes"] or {})]
    assert set(named) | set(failed) <= set(names)
    assert len(named + failed) == len(set(named + failed))
    for why in [*(answer["FailedNodes"] or {}).values(), *(answer["FailedAndUnresolvableNodes"] or {}).values()]:
        assert len(why.encode()) <= 256


@calm
@given(
    names=st.lists(text, max_size=30),
    scores=st.lists(st.tuples(text, st.integers(-(2**70), 2**70)), max_size=40),
    form=st.sampled_from([names_body, nodes_body]),
)
def test_a_priority_list_is_bounded_by_its_request(names, scores, form):
    body = form(names, {})
    encoded = encode_prioritize(decode_args(body), scores + [(name, 10) for name in names])
    answer = json.loads(encoded)
    assert len(encoded) <= 2 * len(body) + 1024
    hosts = [entry["Host"] for entry in answer]
    assert len(hosts) == len(set(hosts))
    assert set(hosts) <= set(names)
    assert all(type(entry["Score"]) is int and 0 <= entry["Score"] <= 10 for entry in answer)


def test_the_largest_map_of_failures_keeps_all_names_and_shortens_messages():
    names = [f"n{n}" for n in range(5000)]
    body = names_body(names, {})
    encoded = encode_filter(decode_args(body), Answer([], Refusal(EventReason.NO_ROOM, "not enough room " * 20), None))
    assert set(json.loads(encoded)["FailedNodes"]) == set(names)
    assert len(encoded) <= 2 * len(body) + 1024


@calm
@given(reasons, st.integers(0, 300))
def test_a_message_is_printable_and_as_short_as_asked(message, limit):
    clipped = clip(message, limit)
    assert clipped.isprintable()
    assert len(msgspec.json.encode(clipped)) <= limit + 2


# Preemption


def victims_body(form):
    pods = {"NodeNameToVictims": [{"metadata": {"uid": "v1"}, "spec": {}}, {"metadata": {"uid": "v2"}}],
            "NodeNameToMetaVictims": [{"UID": "v1"}, {"UID": "v2"}]}[form]  # fmt: skip
    body = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": None}
    return json.dumps(body | {form: {"a": {"Pods": pods, "NumPDBViolations": 1}}}).encode()


@pytest.mark.parametrize("form", ["NodeNameToVictims", "NodeNameToMetaVictims"])
def test_victims_are_read_in_both_forms_and_answered_by_uid(form):
    args = decode_preempt(victims_body(form))
    assert args.victims == {"a": Victims(("v1", "v2"), 1)}
    assert json.loads(encode_preempt(args, {"a": Victims(("v2",), 0)})) == {
        "NodeNameToMetaVictims": {"a": {"Pods": [{"UID": "v2"}], "NumPDBViolations": 0}}
    }


@pytest.mark.parametrize(("chosen", "expected"), [
    pytest.param({}, {}, id="none chosen"),
    pytest.param({"b": Victims(("v1",))}, {}, id="a node that was not offered"),
    pytest.param({"a": Victims(())}, {}, id="a node without victims, which kube-scheduler calls an error"),
    pytest.param({"a": Victims(("x",))}, {}, id="a pod that is not on the node"),
    pytest.param({"a": Victims(("v2", "v2", "x"), 99)}, {"a": (["v2"], 1)}, id="twice the same, too many violations"),
])  # fmt: skip
def test_victims_are_only_those_offered(chosen, expected):
    answer = json.loads(encode_preempt(decode_preempt(victims_body("NodeNameToMetaVictims")), chosen))
    victims_by_node = {node: ([pod["UID"] for pod in entry["Pods"]], entry["NumPDBViolations"])
           for node, entry in answer["NodeNameToMetaVictims"].items()}  # fmt: skip
    assert victims_by_node == expected


@pytest.mark.parametrize("body", [
    pytest.param(b'{"Pod":{}}', id="neither form"),
    pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":[]}', id="a list"),
    pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"Pods":[null]}}}', id="a null pod"),
    pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":{"a":{"NumPDBViolations":' + b"9" * 999 + b"}}}", id="huge"),
])  # fmt: skip
def test_victims_that_cannot_be_read_are_refused(body):
    with pytest.raises(BadRequest):
        decode_preempt(body)


@calm
@given(st.dictionaries(text, st.lists(text, max_size=8), max_size=8))
def test_a_preemption_answer_is_bounded_by_its_request(offered):
    given_ = {node: {"pods": [{"uid": uid} for uid in uids]} for node, uids in offered.items()}
    body = json.dumps({"pod": {}, "nodenametometavictims": given_}, separators=(",", ":")).encode()
    args = decode_preempt(body)
    assert len(encode_preempt(args, args.victims)) <= 2 * len(body) + 1024

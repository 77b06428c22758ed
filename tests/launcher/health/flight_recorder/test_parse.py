"""Dumps of torch, of any version, read as a record; and records that come from anybody."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.errors import BadStacks
from turnout.launcher.health.flight_recorder.model import (
    MOST_BYTES,
    MOST_CALLS,
    MOST_GROUPS,
    MOST_NAME,
    MOST_RANKS_TEXT,
    Call,
    Group,
    Record,
)
from turnout.launcher.health.flight_recorder.parse import MOST_DUMP_BYTES, read, reduce, write
from turnout.launcher.health.stack_traces import parse as stacks

NOW_NS = 1_795_364_860_000_000_000
GLOO = """{"comm_lib_version":"","entries":[{"collective_seq_id":1,"input_dtypes":["Float"],"input_sizes":[[4]],
"is_p2p":false,"op_id":1,"output_dtypes":["Float"],"output_sizes":[[4]],"p2p_seq_id":0,"pg_id":0,
"process_group":["0","default_pg"],"profiling_name":"gloo:all_reduce","record_id":0,"retired":true,"state":"scheduled",
"thread_id":"139736574442368","thread_name":"python","time_created_ns":1795364827845149413,
"time_discovered_completed_ns":0,"time_discovered_started_ns":0,"timeout_ms":1800000},{"collective_seq_id":2,
"input_dtypes":[],"input_sizes":[],"is_p2p":false,"op_id":2,"output_dtypes":[],"output_sizes":[],"p2p_seq_id":0,
"pg_id":0,"process_group":["0","default_pg"],"profiling_name":"gloo:barrier","record_id":1,"retired":false,
"state":"scheduled","thread_id":"139736574442368","thread_name":"python","time_created_ns":1795364850000000000,
"time_discovered_completed_ns":0,"time_discovered_started_ns":0,"timeout_ms":1800000}],"nccl_comm_state":{},
"pg_config":{"":{"desc":"","name":"","ranks":"[0, 1]"}},"pg_status":{"0":{"last_completed_collective":"1",
"last_enqueued_collective":"2","last_started_collective":"-1"}},"version":"2.10"}"""  # of torch 2.15


def entry(number, op="nccl:all_reduce", state="completed", name="0", **more):
    return {
        "pg_id": int(name), "process_group": [name, ""], "collective_seq_id": number, "profiling_name": op,
        "state": state, "retired": False, "is_p2p": False, "time_created_ns": NOW_NS - 9_000_000_000,
        "input_sizes": [[2]],
    } | more  # fmt: skip


def p2p(op, state="scheduled", **more):
    return entry(0, op, state, is_p2p=True, **more)


def dumped(*entries, status=("0",), **more):
    return json.dumps(
        {"entries": entries, "pg_status": {each: {} for each in status}, "version": "2.5"} | more
    ).encode()


def reduced(*entries, **more):
    return reduce([dumped(*entries, **more)], {}, NOW_NS)


def numbers(record):
    """Give each call's number and whether it is open, by group."""
    return {each.name: [(call.number, call.open_s is not None) for call in each.calls] for each in record.groups}


def test_what_gloo_has_on_record_is_a_record():
    record = reduce([GLOO.encode()], {"0": "0-1"}, NOW_NS)
    done, waits = Call(1, "all_reduce of [[4]]"), Call(2, "barrier", 10.0)
    assert record == Record(whole=True, groups=(Group("0", "default_pg", "gloo", "0-1", (done, waits)),))


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        pytest.param([entry(1), entry(2, state="started"), entry(3, state="scheduled")],
                     [(1, False), (2, True), (3, True)], id="a host is ahead of its device"),
        pytest.param([entry(each) for each in range(1, 99)], [(each, False) for each in range(95, 99)],
                     id="of those that are done the last are kept"),
        pytest.param([entry(each, state="scheduled") for each in range(1, 99)],
                     [(1, True), (2, True), (3, True), (4, True), (98, True)], id="the first open ones and the last"),
        pytest.param([entry(1, state="scheduled", retired=True)], [(1, False)], id="gloo tells only that it is over"),
        pytest.param([entry(1, state="scheduled"), entry(2)], [(1, False), (2, False)],
                     id="a device does one after another"),
        pytest.param([entry(1, "gloo:barrier", "scheduled"), entry(2, "gloo:barrier")], [(1, True), (2, False)],
                     id="gloo does not"),
        pytest.param([entry(7, state="scheduled"), entry(7, state="scheduled"), entry(7, "nccl:coalesced")],
                     [(7, False)], id="several that are called as one are done as one"),
        pytest.param([entry(7), entry(1, state="scheduled", pg_id=1)], [(1, True)],
                     id="a group that was made anew begins anew"),
        pytest.param([entry(-1)], [(0, False)], id="a number that is none"),
    ],
)  # fmt: skip
def test_the_calls_of_a_group(entries, found):
    assert numbers(reduced(*entries)) == {"0": found}


@pytest.mark.parametrize(
    ("entries", "sends"),
    [
        pytest.param([p2p("nccl:recv 0<-1")], "recv 0<-1", id="one that waits"),
        pytest.param([p2p("nccl:recv 0<-1", "completed")], "", id="one that came"),
        pytest.param([p2p("nccl:recv 0<-1"), p2p("nccl:send 0->1"), p2p("nccl:coalesced", "completed")], "",
                     id="those of a batch are done as one"),
        pytest.param([p2p("nccl:recv 0<-3"), p2p("nccl:send 0->1", "completed")], "recv 0<-3",
                     id="another one's end says nothing of it"),
    ],
)  # fmt: skip
def test_sends_and_receives_have_no_number_but_are_waited_in(entries, sends):
    assert (reduced(*entries).sends, reduced(*entries).groups) == (sends, ())


@pytest.mark.parametrize(
    ("dump", "whole"),
    [
        pytest.param(dumped(entry(1)), True, id="all groups that called are there"),
        pytest.param(dumped(entry(1), status=("0", "1")), False, id="one is gone: later calls took its room"),
        pytest.param(dumped(status=("0",)), False, id="all are gone: somebody has reset it"),
        pytest.param(dumped(status=()), True, id="nobody has called"),
        pytest.param(dumped(entry(1), pg_status=None), False, id="a torch that does not tell who called"),
        pytest.param(b"{}", True, id="a dump of nothing"),
    ],
)
def test_a_record_is_whole_only_if_a_group_that_is_not_in_it_never_called(dump, whole):
    assert reduce([dump], {}, NOW_NS).whole is whole


def test_two_recorders_of_one_call_make_one_record_and_two_rows():
    dumps = [dumped(entry(5)), dumped(entry(2, "gloo:barrier"), status=("0", "3"))]
    record = reduce(dumps, {"0": "0-3"}, NOW_NS)
    assert [(each.backend, each.begun, each.ranks) for each in record.groups] == [
        ("nccl", 5, "0-3"),
        ("gloo", 2, "0-3"),
    ]
    assert not record.whole


def test_of_many_groups_the_last_to_call_are_kept_in_a_partial_record():
    record = reduced(*(entry(1, name=str(each)) for each in range(MOST_GROUPS + 1)), entry(2), status=())
    assert [each.name for each in record.groups] == [*map(str, range(2, MOST_GROUPS + 1)), "0"]
    assert not record.whole


@pytest.mark.parametrize("dump", [b"", b"[]", b"{", b'{"entries": [{}]}', b'{"entries": 7}', b"\xff", b"[" * 9_999])
def test_a_dump_that_is_none_is_refused(dump):
    with pytest.raises(BadStacks, match="its torch dumps what we do not know"):
        reduce([dump], {}, NOW_NS)


def test_a_dump_without_measure_is_refused():
    with pytest.raises(BadStacks, match=r"67108865 bytes on record, and no more than 67108864 are read"):
        reduce([b" " * (MOST_DUMP_BYTES + 1)], {}, NOW_NS)


def test_names_and_ranks_of_any_length_are_cut_and_read_again_as_written():
    dump = dumped(*(entry(1, f"nccl:{'o' * 999}", process_group=["0" * 999, "a" * 999], pg_id=n) for n in range(9)))
    record = reduce([dump], {"0" * 999: "0/" * 99_999}, NOW_NS)
    (group,) = record.groups
    assert (len(group.name), len(group.about), group.ranks, len(group.calls[0].op)) == (80, 80, "", MOST_NAME)
    assert read(write(record)) == record


def test_a_record_that_is_too_large_says_only_that():
    groups = tuple(Group(str(each), "", "nccl", "0/" * 8_000, (Call(1, "all_reduce"),)) for each in range(MOST_GROUPS))
    record = read(write(Record(1, 8, True, groups)))
    assert (record.rank, record.world, record.groups) == (1, 8, ())
    assert "131072 may be written" in record.why


CALLS = [[each, "all_reduce", None] for each in range(MOST_CALLS + 1)]


@pytest.mark.parametrize(
    ("raw", "why"),
    [
        pytest.param(b"not json", "its record is not what we write", id="no JSON"),
        pytest.param(b"\xff\xfe", "its record is not what we write", id="no text"),
        pytest.param(b"[" * 99_999, "its record is not what we write", id="a deep one"),
        pytest.param(b'{"rank": 1}', "its record is not what we write", id="another form"),
        pytest.param(b"[-1, 4, true]", "its record is not what we write", id="a rank that is none"),
        pytest.param(b'[0, 4, true, [["0", "", "nccl", "0-3", []]]]', "not what we write", id="a group without calls"),
        pytest.param(json.dumps([0, 4, True, [["0", "", "nccl", "", CALLS]]]).encode(), "not what we write",
                     id="too many calls"),
        pytest.param(json.dumps([0, 4, True, [["n" * 81, "", "nccl", "", CALLS[:1]]]]).encode(), "not what we write",
                     id="a long name"),
        pytest.param(b'[0, 4, true, [], "", "%s"]' % (b"w" * 301), "not what we write", id="a long reason"),
        pytest.param(b'"' + b"x" * MOST_BYTES + b'"', "and no more than 131072 are read", id="a large one"),
    ],
)  # fmt: skip
def test_what_is_no_record_is_a_record_that_says_so(raw, why):
    record = read(raw)
    assert why in record.why
    assert record.groups == ()


def test_what_a_record_has_of_strange_letters_is_never_shown():
    raw = json.dumps([0, 2, True, [["0\n\x1b", "\r", "\0", "0", [[1, "a\nb", None]]]], "\n", "\x07"]).encode()
    (group,) = read(raw).groups
    assert (group.name, group.about, group.backend, group.calls[0].op) == ("0??", "?", "?", "a?b")
    assert (read(raw).sends, read(raw).why) == ("?", "?")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=9), st.lists, max_leaves=20))
def test_whatever_is_read_is_a_record(told):
    assert isinstance(read(json.dumps(told).encode()), Record)


STACK = 'Current thread 0x02 (most recent call first):\n  File "train.py", line 7 in step\n'


def test_the_file_of_a_rank_has_its_record_be_there_a_stack_or_not():
    record = Record(1, 2, True)
    assert stacks.record_of(stacks.write("faulthandler", STACK, "S", "", record)) == record
    assert stacks.record_of(stacks.write("", "", "T", "it is stopped", record)) == record
    assert stacks.record_of(stacks.write("faulthandler", STACK, "S")) is None
    assert stacks.read(stacks.write("faulthandler", STACK, "S", "", record)).python


@pytest.mark.parametrize("raw", [STACK.encode(), b"[]", b"{", b'{"by": "py-spy", "stacks": "x"}', b"\xff"])
def test_a_file_that_is_not_ours_or_of_before_has_no_record(raw):
    assert stacks.record_of(raw) is None


@pytest.mark.parametrize("forged", ["7", '"x"', "{}", "[[[[]]]]", '[0, 4, true, [["0"]]]'])
def test_a_forged_record_does_not_spoil_the_stack_beside_it(forged):
    file = stacks.write("faulthandler", STACK, "S", "", Record(why="PLACE"))
    raw = file.replace(write(Record(why="PLACE")), forged.encode())
    assert "its record is not what we write" in stacks.record_of(raw).why
    assert stacks.read(raw).python


def test_a_file_may_go_without_its_record():
    raw = stacks.without_record(stacks.write("faulthandler", STACK, "S", "", Record(1, 2, True)))
    assert raw == stacks.write("faulthandler", STACK, "S")
    with pytest.raises(BadStacks):
        stacks.without_record(b"no file")


def test_ours_are_the_fields_that_torch_writes():
    assert set(entry(1)) <= set(msgspec.json.decode(GLOO)["entries"][0])


def of_little(**more):
    """An entry of a torch that tells no more than it must."""
    known = entry(5, state="scheduled") | more
    told = ("pg_id", "process_group", "collective_seq_id", "profiling_name", "state", "time_created_ns")
    return {name: known[name] for name in known if name in (*told, *more)}


@pytest.mark.parametrize(
    ("more", "open_s"),
    [
        pytest.param({}, 9.0, id="it is a collective, and not done"),
        pytest.param({"time_created_ns": NOW_NS + 10**9}, 0.0, id="one of the future has begun now"),
        pytest.param({"time_created_ns": NOW_NS - 5 * 10**8}, 0.5, id="half a second ago"),
        pytest.param({"time_created_ns": -(10**18)}, 1e9, id="one of ever so long ago for as long as can be told"),
    ],
)
def test_for_how_long_a_call_is_open(more, open_s):
    record = reduced(of_little(**more))
    assert (record.sends, record.groups[0].calls) == ("", (Call(5, "all_reduce of ", open_s),))


def test_a_call_of_which_no_time_is_told_began_with_the_clock():
    told = of_little()
    del told["time_created_ns"]
    assert reduce([dumped(told)], {}, 7 * 10**8).groups[0].calls[0].open_s == 0.7


@pytest.mark.parametrize(
    ("entries", "found"),
    [
        pytest.param([entry(1, "gloo:barrier", "scheduled"), entry(2, "gloo:barrier", "scheduled"),
                      entry(1, "gloo:barrier")], [(1, False), (2, True)], id="the end of one is not that of another"),
        pytest.param([entry(1, "gloo:barrier", "scheduled"), entry(1, "gloo:barrier"), entry(2, "gloo:barrier"),
                      entry(1, "gloo:barrier", "scheduled")], [(1, False), (2, False)],
                     id="what is done stays done, whatever is told later"),
        pytest.param([entry(1, "nccl:barrier", "scheduled"), entry(2, "nccl:barrier"),
                      entry(3, "nccl:barrier", "scheduled")], [(1, False), (2, False), (3, True)],
                     id="after the end of one another is open"),
        pytest.param([entry(each, state="scheduled") for each in (1, 2, 3)], [(1, True), (2, True), (3, True)],
                     id="several are open"),
    ],
)  # fmt: skip
def test_the_ends_of_calls(entries, found):
    assert numbers(reduced(*entries)) == {"0": found}


def test_an_entry_of_one_group_says_nothing_of_another():
    record = reduced(entry(1, name="0"), entry(3, name="1"), entry(2, name="0"), status=("0", "1"))
    assert numbers(record) == {"1": [(3, False)], "0": [(1, False), (2, False)]}
    assert [each.about for each in reduced(entry(1, process_group=["0", "default_pg"])).groups] == ["default_pg"]


def test_the_send_of_the_first_group_that_waits_in_one_is_told():
    sent = reduced(entry(1), p2p("nccl:send 0->1", "completed", name="1"), p2p("nccl:recv 0<-3", name="2"))
    assert sent.sends == "recv 0<-3"


@pytest.mark.parametrize(
    ("dumps", "whole"),
    [
        pytest.param([], True, id="without a recorder nothing was called"),
        pytest.param([dumped(entry(1), status=("0", "1")), dumped(entry(1))], False, id="the first has lost a group"),
        pytest.param([dumped(entry(1)), dumped(entry(1), status=("0", "1"))], False, id="the last has"),
    ],
)
def test_what_any_recorder_lacks_the_record_lacks(dumps, whole):
    assert reduce(dumps, {}, NOW_NS).whole is whole


@pytest.mark.parametrize(
    ("groups", "status", "whole"),
    [
        pytest.param(MOST_GROUPS, [], True, id="as many as are kept"),
        pytest.param(MOST_GROUPS, ["x"], False, id="as many, and one that is gone"),
        pytest.param(MOST_GROUPS + 1, [], False, id="one more than are kept"),
    ],
)
def test_a_record_is_whole_only_if_all_its_groups_are_kept(groups, status, whole):
    entries = [entry(1, name=str(each)) for each in range(groups)]
    assert reduced(*entries, status=[*map(str, range(groups)), *status]).whole is whole


@pytest.mark.parametrize(("more", "kept"), [(0, True), (1, False)])
def test_the_ranks_of_a_group_are_told_as_far_as_there_is_room(more, kept):
    ranks = "0" * (MOST_RANKS_TEXT + more)
    assert reduce([dumped(entry(1))], {"0": ranks}, NOW_NS).groups[0].ranks == (ranks if kept else "")


def test_as_much_as_may_be_written_is_written_and_read():
    record = Record(1, 8, True, (Group("0", "", "nccl", "", (Call(1, "all_reduce"),)),) * 3)
    room = MOST_BYTES - len(msgspec.json.encode(record))
    for more, whole in ((0, True), (1, False)):
        groups = list(record.groups)
        for at in range(3):
            ranks = room // 3 + (room % 3 + more if at == 0 else 0)
            groups[at] = msgspec.structs.replace(groups[at], ranks="0" * ranks)
        large = msgspec.structs.replace(record, groups=tuple(groups))
        assert (write(large) == msgspec.json.encode(large)) is whole
    assert read(write(record).ljust(MOST_BYTES)) == record
    assert "are read" in read(write(record).ljust(MOST_BYTES + 1)).why


def test_a_dump_may_have_as_many_bytes_as_are_read():
    raw = dumped(entry(1)).ljust(MOST_DUMP_BYTES)
    assert reduce([raw], {}, NOW_NS).whole


def test_why_something_is_no_record_is_told_as_far_as_anybody_reads():
    assert len(read(json.dumps([0, 1, True, [], "x", {"k" * 999: 1}]).encode()).why) <= 300
    with pytest.raises(BadStacks, match=r"^its torch dumps what we do not know: .{0,200}$"):
        reduce([b'{"entries": 7}'], {}, NOW_NS)

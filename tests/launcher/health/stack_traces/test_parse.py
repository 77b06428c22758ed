"""Outputs of tools that are read: py-spy in both its forms, faulthandler, our own files, and truncated ones."""

import faulthandler
import json
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.launcher.errors import BadStacks
from turnout.launcher.health.stack_traces.parse import MAX_BYTES, read, state_of, write
from turnout.launcher.health.stack_traces.stack_tree import (
    INNER_FRAMES,
    MAX_FRAMES,
    MAX_NAME,
    MAX_THREADS,
    OMITTED_FRAMES,
    UNNAMED,
)

SPY_TEXT = """\
Process 71: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 71 (idle): "MainThread"
    clock_nanosleep (libc.so.6)
    0x7f2559ca71f5 (libtorch.so)
    ncclWait (wait.cc:12)
    Work.wait (torch/distributed/c10d.py:31)
        Arguments:
            self: <Work at 0x7f>
    <module> (train.py:4)
Thread 99 (active+gil): "pin (memory)"
    run (threading.py:982)
"""
SPY_JSON = """\
[{"pid": 71, "thread_id": 1, "thread_name": null, "os_thread_id": 71, "active": true, "frames": [
  {"name": "poll", "filename": "/usr/lib/x86/libc.so.6", "module": "/usr/lib/x86/libc.so.6", "line": 0},
  {"name": "0x7f00", "filename": "/opt/lib/libnccl.so.2", "module": "/opt/lib/libnccl.so.2", "line": 0},
  {"name": "Work.wait", "filename": "/v/lib/python3.11/site-packages/torch/c10d.py", "module": null, "line": 31},
  {"name": "main.<locals>.step", "filename": "/work/train", "module": null, "line": 7}]},
 {"pid": 71, "os_thread_id": 80, "thread_name": "Thread-1 (f)", "frames": [
  {"name": "f", "filename": "<string>", "module": null, "line": null}]}]
"""
FAULT = """\
Thread 0x00007f15 (most recent call first):
  <no Python frame>

Thread 0x00007f16 [pin] (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  ...

Current thread 0x00007f17 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/c10d.py", line 31 in wait
  File "/work/train.py", line ??? in step
  File "/work/train.py", line 60 in <module>
"""


def shown(raw):
    stacks = read(raw.encode() if isinstance(raw, str) else raw)
    return tuple(
        [(" ".join(f"{f}:{at}" for f, at in zip(each.frames, each.lines, strict=True)), each.main) for each in kind]
        for kind in (stacks.python, stacks.native)
    )


@pytest.mark.contract("DL-117")
@pytest.mark.parametrize(
    ("raw", "python", "native"),
    [
        pytest.param(
            SPY_TEXT,
            [("<module>@train.py:4 wait@torch/distributed/c10d.py:31", True), ("run@threading.py:982", False)],
            [("ncclWait@wait.cc:12 ??@libtorch.so:0 clock_nanosleep@libc.so.6:0", True)],
            id="the text of py-spy",
        ),
        pytest.param(
            SPY_JSON,
            [("step@/work/train:7 wait@torch/c10d.py:31", True), ("f@<string>:0", False)],
            [("??@libnccl.so.2:0 poll@libc.so.6:0", True)],
            id="the JSON of py-spy",
        ),
        pytest.param(
            FAULT,
            [("...@...:0 wait@threading.py:324", False),
             ("<module>@/work/train.py:60 step@/work/train.py:0 wait@torch/c10d.py:31", True)],
            [],
            id="faulthandler: the main thread is the last one",
        ),
    ],
)  # fmt: skip
def test_frames_are_read_outermost_first_python_and_c_apart(raw, python, native):
    assert shown(raw) == (python, native)
    assert shown(write("a tool", raw, "S")) == (python, native)


def test_a_process_that_really_stands_somewhere(tmp_path):
    def waits():
        done.wait()

    done = threading.Event()
    other = threading.Thread(target=waits)
    other.start()
    with (tmp_path / "dump").open("w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        stacks = read(file.read())
    done.set()
    other.join()
    (main,) = (each for each in stacks.python if each.main)
    assert str(main.frames[-1]).startswith("test_a_process_that_really_stands_somewhere@")
    assert any("waits" in [frame.function for frame in each.frames] for each in stacks.python if not each.main)


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(
            b"Error: Permission Denied: Try running again with elevated permissions", id="a refusal of py-spy"
        ),
        pytest.param(b"[]", id="no thread"),
        pytest.param(b'[{"frames": [{"name": 3}]}]', id="another JSON"),
        pytest.param(b'{"by": "us"}', id="half a file of ours"),
        pytest.param(b"[" * 100_000, id="brackets upon brackets"),
        pytest.param(b'{"by":"x","stacks":"[[[["}', id="JSON in ours that is none"),
        pytest.param(b"\xff\xfe\x00", id="no text"),
        pytest.param(b" " * (MAX_BYTES + 1), id="too much"),
        pytest.param(b"Thread 0x1 (most recent call first):\n  <no Python frame>\n", id="a thread without frames"),
    ],
)
def test_what_has_no_stack_is_refused(raw):
    with pytest.raises(BadStacks):
        read(raw)


def fault(frames):
    lines = "".join(f'  File "a.py", line 1 in f{at}\n' for at in frames)
    return f"Current thread 0x1 (most recent call first):\n{lines}"


def test_of_too_many_frames_the_outer_and_the_inner_ones_are_kept():
    (only,) = read(fault(range(1_000)).encode()).python
    names = [frame.function for frame in only.frames]
    assert (len(names), names[0], names[-1]) == (MAX_FRAMES, "f999", "f0")
    assert only.frames.count(OMITTED_FRAMES) == 1


def test_of_too_many_threads_the_last_is_kept_as_it_is_the_main_one():
    stacks = read("\n".join(fault([at]) for at in range(1_000)).encode())
    assert len(stacks.python) == MAX_THREADS
    assert [each.frames[0].function for each in stacks.python if each.main] == ["f999"]


def test_a_file_without_stacks_says_why():
    with pytest.raises(BadStacks, match="it is stopped"):
        read(write("", "", "T", "it is stopped"))


def test_what_the_launcher_does_before_the_script_begins_is_left_out():
    ours = "".join(
        f'  File "/v/launcher/workers/forkserver/{name}.py", line 9 in f\n' for name in ("child_main", "server")
    )
    script = '  File "train.py", line 1 in <module>\n'
    forked, executed = (
        read(f"Current thread 0x1 (most recent call first):\n{script}{outer}".encode()) for outer in (ours, "")
    )
    assert forked == executed


def test_names_are_short_and_can_be_printed():
    name = "x\x1b[31m;</svg>" + "y" * 10_000
    (only,) = read(f'Current thread 0x1 (most recent call first):\n  File "a@b.py", line 1 in {name}\n'.encode()).python
    (frame,) = only.frames
    assert frame.function.startswith("x?[31m?</svg>yyy")
    assert len(frame.function) == MAX_NAME
    assert frame.source == "a?b.py"


@given(st.sampled_from([SPY_TEXT, SPY_JSON, FAULT]), st.data())
@settings(max_examples=scaled(60))
def test_a_text_that_was_cut_or_spoilt_is_read_or_refused(raw, data):
    at, spoilt = data.draw(st.integers(0, len(raw))), data.draw(st.binary(max_size=4))
    for wrong in (raw[:at].encode(), raw[:at].encode() + spoilt + raw[at:].encode()):
        try:
            stacks = read(wrong)
        except BadStacks:
            continue
        assert stacks.python or stacks.native


def spy_text(*heads, process="Process 71: python\n"):
    return process + "".join(f"Thread {head}\n    f{at} (train.py:4)\n" for at, head in enumerate(heads))


def spy_json(**thread):
    return json.dumps([{"frames": [{"name": "f", "filename": "train.py"}]} | thread])


@pytest.mark.parametrize(
    ("raw", "main"),
    [
        pytest.param(spy_text("71 (idle)", "99 (idle)"), [True, False], id="the one whose number is the process"),
        pytest.param(spy_text('70 (idle): "MainThread"', "99 (idle)"), [True, False], id="or that is named so"),
        pytest.param(spy_text("71 (idle)", process=""), [False], id="nobody knows the process"),
        pytest.param(spy_json(thread_name="MainThread"), [True], id="in JSON: that is named so"),
        pytest.param(spy_json(pid=1, os_thread_id=1), [True], id="in JSON: whose number is the process"),
        pytest.param(spy_json(pid=71, os_thread_id=72), [False], id="in JSON: another one"),
        pytest.param(spy_json(pid=0, os_thread_id=0), [False], id="in JSON: of no process"),
        pytest.param(spy_json(os_thread_id=0), [False], id="in JSON: nobody knows the process"),
    ],
)
def test_which_thread_is_the_main_one(raw, main):
    assert [each.main for each in read(raw.encode()).python] == main


def test_a_line_that_is_not_told_is_not_known():
    assert read(spy_json().encode()).python[0].lines == (0,)
    for line in ("-3", "99999999999"):
        raw = spy_json(frames=[{"name": "f", "filename": "a.py", "line": int(line)}])
        assert read(raw.encode()).python[0].lines == (max(int(line), 0),)
    assert read(fault([0]).replace("line 1 ", "line 123456789 ").encode()).python[0].lines == (0,)
    assert read(fault([0]).replace("line 1 ", "line 12345678 ").encode()).python[0].lines == (12_345_678,)


@pytest.mark.parametrize(("count", "frame_count"), [(MAX_FRAMES, MAX_FRAMES), (MAX_FRAMES + 1, MAX_FRAMES - 1)])
def test_frames_are_left_out_only_where_they_are_too_many(count, frame_count):
    (only,) = read(fault(range(count)).encode()).python
    assert len([frame for frame in only.frames if frame != OMITTED_FRAMES]) == frame_count
    if frame_count < count:
        assert only.frames.index(OMITTED_FRAMES) == MAX_FRAMES - INNER_FRAMES - 1
        assert (only.lines[only.frames.index(OMITTED_FRAMES)], only.frames[-INNER_FRAMES].function) == (0, "f63")


@pytest.mark.parametrize(("count", "first", "last"), [(256, range(255), 255), (257, range(255), 256)])
def test_threads_are_left_out_only_where_they_are_too_many(count, first, last):
    stacks = read("\n".join(fault([at]) for at in range(count)).encode())
    assert [each.frames[0].function for each in stacks.python] == [f"f{at}" for at in (*first, last)]


def test_launcher_frames_are_left_out_down_to_its_last_call_of_the_script():
    lines = [f'  File "{name}.py", line {at} in f{at}\n' for at, name in enumerate("abcd")]
    ours = '  File "/v/launcher/workers/forkserver/child_main.py", line 9 in run\n'
    raw = "".join(["Current thread 0x1 (most recent call first):\n", *lines[:2], ours, lines[2], ours, lines[3]])
    (only,) = read(raw.encode()).python
    assert ([frame.function for frame in only.frames], only.lines) == (["f1", "f0"], (1, 0))


@pytest.mark.parametrize("filler", [b"", b"\n  "], ids=["at once", "after empty lines"])
def test_a_form_is_known_by_its_first_letter(filler):
    assert read(filler + write("a tool", "\n " + SPY_JSON, "S")).python == read(filler + SPY_JSON.encode()).python


def test_as_many_bytes_as_a_rank_may_have_are_read():
    file = write("faulthandler", fault([0]), "S")
    content = file.ljust(MAX_BYTES)
    assert read(content).python == read(file).python


def test_the_state_of_a_process_is_one_letter():
    file = write("faulthandler", fault([0]), "Sl+")
    assert (read(file).state, state_of(file)) == ("S", "S")
    assert state_of(write("", "", "")) == state_of(b"no file") == " "
    assert read(write("faulthandler", fault([0]), "\n")).state == "?"


def test_a_reason_may_be_long_and_is_told_as_far_as_anybody_reads():
    with pytest.raises(BadStacks, match=r"^w{300}$"):
        read(write("", "", "T", "w" * 999))
    with pytest.raises(BadStacks, match=r"^no stack is in it$"):
        read(write("", "", "T"))


def test_a_frame_without_a_name_has_the_guides():
    (only,) = read(fault([0]).replace(" in f0", " in ").replace("a.py", "").encode()).python
    assert str(only.frames[0]) == f"{UNNAMED}@{UNNAMED}"

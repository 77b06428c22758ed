"""Parses stack traces of one process: py-spy's JSON or text, Python's faulthandler text, and our own files.

Damaged text is read as far as possible, since a cut stack is better than none. Names come from untrusted programs, so
they are cut to a length and to printable characters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from turnout.launcher.errors import BadStacks
from turnout.launcher.health.stack_traces.stack_tree import (
    INNER_FRAMES,
    MAX_FRAMES,
    MAX_NAME,
    MAX_THREADS,
    OMITTED_FRAMES,
    UNNAMED,
    Frame,
    RankStacks,
    Thread,
)

MAX_BYTES = 4 * 1024 * 1024  # of one rank
_HOMES = re.compile(r".*/(?:site-packages|dist-packages|lib/python3\.\d+)/")
_OUR_START = "launcher/workers/forkserver/child_main.py"  # calls the user's script
_NATIVE = re.compile(r"\.so\b|\.(?:cc?|cpp|cxx|cu|hh?|hpp|cuh|S)$")
_FAULT_BLOCK = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):$", re.M)
_FAULT_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$', re.M)
_SPY_PROCESS = re.compile(r"^Process (\d+):", re.M)
_SPY_BLOCK = re.compile(r'^Thread (\w+) \([^()\n]*\)(?:: "(.*)")?$', re.M)
_SPY_FRAME = re.compile(r"^ {4}(\S.*) \(([^()\n]*?)(?::(\d+))?\)$", re.M)


class _SpyFrame(msgspec.Struct):
    name: str
    filename: str
    module: str | None = None  # the library of a native frame
    line: int | None = 0


class _SpyThread(msgspec.Struct):
    frames: list[_SpyFrame]
    pid: int = 0
    os_thread_id: int | None = None
    thread_name: str | None = None


class _StackFile(msgspec.Struct):
    by: str
    stacks: str
    state: str = ""
    why: str = ""


_Step = tuple[Frame, int, bool]  # a frame, its line (0 if unknown), True for a Python frame
_spy = msgspec.json.Decoder(list[_SpyThread])
_file = msgspec.json.Decoder(_StackFile)


def write(by: str, stacks: str, state: str, why: str = "") -> bytes:
    """Encode the file of one rank.

    by: the tool that printed `stacks`, "" for none. state: letter of the process state, "" if it has ended. why: the
    reason for missing stacks, or why a better tool failed.
    """
    return msgspec.json.encode(_StackFile(by, stacks, state, why))


def read(raw: bytes) -> RankStacks:
    """Parse the stacks in one of our files, or in the output of py-spy or faulthandler.

    raw: the content of a file. Raises BadStacks if it has no stacks, more than MAX_BYTES, or JSON that is none of
    these.
    """
    if len(raw) > MAX_BYTES:
        raise BadStacks(f"it has {len(raw)} bytes, and no more than {MAX_BYTES} are read")
    try:
        if raw.lstrip()[:1] != b"{":
            return _parse_text(raw.decode(errors="replace"), "")
        file = _file.decode(raw)
        if not file.stacks:
            raise BadStacks(_make_printable(file.why[:300]) or "no stack is in it")
        return _parse_text(file.stacks, _make_printable(file.state[:1]))
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadStacks(f"it is not what a tool prints: {str(error)[:200]}") from error


def state_of(raw: bytes) -> str:
    """Return the letter of the process state in one of our files; a space if it has none or is not our file."""
    try:
        return _file.decode(raw).state[:1] or " "
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return " "


def _threads(text: str) -> Sequence[tuple[Sequence[_Step], bool]]:
    """Parse the output of py-spy (text or JSON) or faulthandler. Return (steps, is the main thread) of each thread."""
    if text.lstrip()[:1] == "[":
        return _spy_json(text)
    if blocks := _blocks(_FAULT_BLOCK, text):
        # The main thread is last.
        return [(_fault_steps(body), at == len(blocks) - 1) for at, (_, body) in enumerate(blocks)]
    process = _SPY_PROCESS.search(text)
    pid = process[1] if process else ""
    return [(_spy_steps(body), head[1] == pid or head[2] == "MainThread") for head, body in _blocks(_SPY_BLOCK, text)]


def _parse_text(text: str, state: str) -> RankStacks:
    """Convert captured text to the Python and native stacks of one rank.

    state: letter of the process state, as in ps(1). Raises BadStacks if no stack is in the text.
    """
    threads = _threads(text)
    python = [_thread([step for step in steps if step[2]], main) for steps, main in threads]
    native = [_thread([step for step in steps if not step[2]], main) for steps, main in threads]
    if not any(each.frames for each in (*python, *native)):
        raise BadStacks("no stack is in it")
    return RankStacks(_with_frames(python), _with_frames(native), state)


def _with_frames(threads: Sequence[Thread]) -> tuple[Thread, ...]:
    """Drop the threads without a frame."""
    return tuple(thread for thread in threads if thread.frames)


def _blocks(head: re.Pattern[str], text: str) -> list[tuple[re.Match[str], str]]:
    """Split text at the matches of a pattern.

    Returns (match, text up to the next match), at most MAX_THREADS blocks. The last block is always kept.
    """
    heads = list(head.finditer(text))
    ends = [*(each.start() for each in heads[1:]), len(text)]
    blocks = [(each, text[each.end() : end]) for each, end in zip(heads, ends, strict=False)]
    # The main thread may be the last.
    return blocks if len(blocks) <= MAX_THREADS else [*blocks[: MAX_THREADS - 1], blocks[-1]]


def _spy_json(text: str) -> list[tuple[Sequence[_Step], bool]]:
    """Return the steps of each thread in py-spy's JSON, and whether it is the main thread.

    At most MAX_THREADS threads.
    """
    return [
        (
            [_step(frame.name, frame.filename, frame.line or 0, frame.module is None) for frame in thread.frames],
            thread.thread_name == "MainThread" or (thread.pid > 0 and thread.os_thread_id == thread.pid),
        )
        for thread in _spy.decode(text)[:MAX_THREADS]
    ]


@lru_cache(512)  # waiting ranks show the same text
def _fault_steps(body: str) -> tuple[_Step, ...]:
    """Return the steps of one thread in the text of faulthandler, innermost first.

    A step OMITTED_FRAMES follows if faulthandler has cut the stack.
    """
    steps = [
        _step(name, source, int(line) if len(line) < 9 and line.isdecimal() else 0, True)
        for source, line, name in _FAULT_FRAME.findall(body)
    ]
    cut = "\n  ...\n" in body  # faulthandler prints the 100 innermost frames only
    return (*steps, (OMITTED_FRAMES, 0, True)) if cut else tuple(steps)


@lru_cache(512)
def _spy_steps(body: str) -> tuple[_Step, ...]:
    """Return the steps of one thread in the text of py-spy, innermost first."""
    return tuple(
        _step(name, source, int(line) if 0 < len(line) < 9 else 0, bool(line) and not _NATIVE.search(source))
        for name, source, line in _SPY_FRAME.findall(body)
    )


@lru_cache(8_192)
def _step(name: str, source: str, line: int, python: bool) -> _Step:
    """Return (frame in the guide's form, line number, `python`), without parts that differ between tools and machines.

    name: of the function. source: path of its file. line: 0 and below are unknown, and give 0. python: False for a
    native frame.
    """
    source = _HOMES.sub("", source) if python else source.rsplit("/", 1)[-1]
    if python:
        name = name.rsplit(".", 1)[-1]  # py-spy prints the class, faulthandler does not
    elif name.startswith("0x"):
        name = UNNAMED
    source = _make_printable(source[-MAX_NAME:]).replace("@", "?")  # the separator of a label
    return Frame(_make_printable(name[:MAX_NAME]) or UNNAMED, source or UNNAMED), line if line > 0 else 0, python


def _make_printable(text: str) -> str:
    """Make a name valid for one line of XML. A `;` is replaced too, since it ends a frame in the guide's text."""
    return "".join(letter if letter.isprintable() and letter != ";" else "?" for letter in text)


def _thread(steps: Sequence[_Step], main: bool) -> Thread:
    """Make a thread with the outermost frame first, without the launcher's own outer frames.

    A deep stack loses frames in the middle. steps: innermost first, as all tools print them. main: it is the main
    thread.
    """
    outer = list(reversed(steps))
    own_index = max((at for at, step in enumerate(outer) if step[0].source.endswith(_OUR_START)), default=-1)
    outer = outer[own_index + 1 :]  # a process that was not forked has no such frames
    if len(outer) > MAX_FRAMES:
        outer = [*outer[: MAX_FRAMES - INNER_FRAMES - 1], (OMITTED_FRAMES, 0, True), *outer[-INNER_FRAMES:]]
    return Thread(tuple(step[0] for step in outer), tuple(step[1] for step in outer), main)

"""Captures the stacks of this agent's processes: by py-spy if it is installed and allowed, else by a signal.

It also writes the files: the folder, its permissions, and that each file in it is complete.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from turnout.launcher.health.hang_monitor.prepare_process import SIGNAL, stacks_file
from turnout.launcher.health.stack_traces.parse import MAX_BYTES, write

_NAME = "turnout-stacks"


class StackFolder:
    """A folder for stack traces: the one that the user named, or else a private one in the temporary folder.

    A stack trace shows code and names of files. Another user may have made a folder or a link of our name in the
    temporary folder; then a fresh folder beside it is used. named: "" for the temporary folder. temporary: None for the
    system's.
    """

    def __init__(self, named: str, temporary: Path | None = None) -> None:
        self._private = not named
        self.path = Path(named) if named else (temporary or Path(tempfile.gettempdir())) / _NAME

    def replace_all(self, files: Mapping[int, bytes], world: int) -> None:
        """Write one file per rank, and remove all files of worlds of other sizes.

        Files of other ranks of a world of this size stay. files: content by rank. world: number of ranks. Raises
        OSError if the folder cannot be made, or a file cannot be written or removed.
        """
        self._make()
        for old in self.path.glob("[0-9]*-*.stacktrace"):
            if not old.name.endswith(f"-{world:05}.stacktrace"):
                old.unlink(missing_ok=True)
        self.write({f"{rank:05}-{world:05}.stacktrace": content for rank, content in files.items()})

    def write(self, files: Mapping[str, bytes]) -> None:
        """Write files, given as content by name, each in one step. Agents of several hosts may write the same name.

        Raises OSError if the folder cannot be made, or a file cannot be written.
        """
        self._make()
        for name, content in files.items():
            new = self.path / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(new, flags, 0o600 if self._private else 0o666), "wb") as file:
                file.write(content)
            new.replace(self.path / name)

    def _make(self) -> None:
        """Create the folder for stacks. If another user owns the default folder, a new one beside it is used."""
        if not (self._private and os.path.lexists(self.path)):
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if self._private and not self._is_ours():
            self.path = Path(tempfile.mkdtemp(prefix=f"{_NAME}-", dir=self.path.parent))

    def _is_ours(self) -> bool:
        """Return True if the folder belongs to this user; then make it readable for this user alone."""
        about = self.path.lstat()
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.geteuid():
            return False
        if about.st_mode & 0o077:
            self.path.chmod(0o700)
        return True


# Seconds for py-spy with native frames, which reads symbols of large libraries slowly the first time, and without.
NATIVE_S, PLAIN_S = 30.0, 10.0

ANSWER_S = 3.0  # seconds for a process to answer the signal

_QUIET_S = 0.1  # seconds without output after which a dump is complete

_LOOK_S = 0.01  # seconds between two checks of the dump's size

_STATES = {"D": "the kernel does not let it go", "T": "it is stopped", "t": "a debugger has stopped it"}


@dataclass(frozen=True, slots=True)
class CapturedStack:
    """The stack traces of one process."""

    file: bytes  # the content of its file, as parse.write encodes it
    shown: bool  # it has stacks
    why: str = ""  # why stacks are missing, or why py-spy failed; "" for no failure


def find_py_spy() -> str:
    """Return the path of py-spy, beside this Python or on PATH; "" if it is not installed."""
    installed = Path(sys.executable).with_name("py-spy")
    return str(installed) if os.access(installed, os.X_OK) else shutil.which("py-spy") or ""


async def capture_stacks(processes: Mapping[int, tuple[int, Path]], py_spy: str) -> dict[int, CapturedStack]:
    """Capture the stacks of these processes at the same time; return them by local rank.

    processes: pid and progress file by local rank. py_spy: path of py-spy, "" for none.
    """
    ranks = sorted(processes)
    stacks = await asyncio.gather(*(_capture_one(*processes[rank], py_spy) for rank in ranks))
    return dict(zip(ranks, stacks, strict=True))


async def _capture_one(pid: int, progress: Path, py_spy: str) -> CapturedStack:
    """Capture the stacks of one process: by py-spy with native frames, without them, or by a signal."""
    state = _state(pid)
    if not state:
        return CapturedStack(write("", "", "", "the process has ended"), False, "the process has ended")
    printed, why = "", "py-spy is not installed"
    if py_spy:
        # Py-spy cannot read native frames on some machines.
        for limit_s, options in ((NATIVE_S, ["--native"]), (PLAIN_S, [])):
            printed, why = await _run_py_spy([py_spy, "dump", "--json", "--pid", str(pid), *options], limit_s)
            if printed:
                return CapturedStack(write("py-spy", printed, state), True)
    printed, signal_fault = await asyncio.to_thread(_dump_by_signal, pid, Path(stacks_file(progress)))
    if signal_fault:
        state = _state(pid)
        why = ", ".join((why, signal_fault, _STATES.get(state, f"its state is {state or 'gone'}")))
    return CapturedStack(write("faulthandler", printed, state, why), bool(printed), why)


async def _run_py_spy(command: list[str], limit_s: float) -> tuple[str, str]:
    """Run py-spy; return its output and "", or "" and the reason why it failed. limit_s: seconds until it is killed."""
    try:
        spy = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        return "", f"py-spy cannot be run: {error}"
    try:
        out, err = await asyncio.wait_for(spy.communicate(), limit_s)
    except TimeoutError:
        return "", f"py-spy took more than {limit_s:g} s"
    finally:
        if spy.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                spy.kill()
            await spy.wait()
    if spy.returncode == 0 and len(out) < MAX_BYTES // 2:  # quoting in JSON makes it larger
        return out.decode(errors="replace"), ""
    return "", f"py-spy: {_complaint(err.decode(errors='replace')) or f'exit code {spy.returncode}'}"


def _complaint(printed: str) -> str:
    """Return py-spy's error and its causes in one line, at most 200 characters. printed: its stderr."""
    lines = printed.partition("Stack backtrace")[0].replace("Caused by:", "").splitlines()
    parts = [line.strip().lstrip("0123456789").removeprefix(": ").removeprefix("Error: ") for line in lines]
    return ": ".join(dict.fromkeys(part for part in parts if part))[:200]


def _dump_by_signal(pid: int, file: Path) -> tuple[str, str]:
    """Signal a process so that it writes its stacks; return (text, ""), or ("", why there is no text). Raises nothing.

    file: the process's own file, `stacks_file(progress)`: the process opened it at its start, and writes nowhere else.
    It is emptied first. At most MAX_BYTES // 2 bytes are read. Blocks until the output pauses, for ANSWER_S at most.
    """
    try:
        if not _signal(pid, file):
            return "", "the process has no stack handler: the forkserver did not start it, and its script has no Steps"
        since_s = time.monotonic()
        until_s, size = since_s + ANSWER_S, 0
        while time.monotonic() < until_s and (not size or time.monotonic() - since_s < _QUIET_S):
            time.sleep(_LOOK_S)
            if (current_size := file.stat().st_size) != size:
                size, since_s = current_size, time.monotonic()
        with file.open("rb") as dump:
            printed = dump.read(MAX_BYTES // 2).decode(errors="replace")
    except OSError as error:
        return "", f"its stacks cannot be read: {error}"
    return printed, "" if printed else f"it did not answer a signal in {ANSWER_S:g} s"


def _signal(pid: int, file: Path) -> bool:
    """Truncate `file` and signal the process, if it has our handler. Else return False: the signal would kill it.

    Raises OSError if the process has ended or the file is missing.
    """
    process = os.pidfd_open(pid)
    try:
        if not _has_handler(pid, SIGNAL):
            return False
        os.truncate(file, 0)
        signal.pidfd_send_signal(process, SIGNAL)
    finally:
        os.close(process)
    return True


def _has_handler(pid: int, sig: int) -> bool:
    """Return True if the process has a handler for a signal. Raises OSError if the process has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> sig - 1 & 1)
    return False


def _state(pid: int) -> str:
    """Return the letter of the process state as in ps(1), such as D (blocked in the kernel); "" if it has ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
    return "" if state in "ZX" else state

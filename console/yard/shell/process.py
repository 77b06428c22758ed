"""Start, find and end the yard's process, which outlives the command that started it."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from console.yard.note import KUBECONFIG, LOG, MARK, NOTE, Note, read

if TYPE_CHECKING:
    from simulator.yard.access import Access

_UP_S, _DOWN_S, _ANSWER_S = 120.0, 20.0, 10.0
_TOLD_LINES = 12


class YardFailed(Exception):
    """The yard did not come up, or does not answer. The message says why and what to do."""


def home() -> Path:
    """Where a yard's kubeconfig, note and log lie."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "turnout" / "yard"


def found(folder: Path) -> Note | None:
    """The yard that runs in this folder; None when none does, whatever an older one left behind."""
    try:
        note = read((folder / NOTE).read_bytes())
        command = Path(f"/proc/{note.pid}/cmdline").read_bytes() if note else b""
    except OSError:
        return None
    return note if MARK.encode() in command.split(b"\0") and str(folder).encode() in command.split(b"\0") else None


def start(folder: Path, flags: Sequence[str]) -> Note:
    """Start a yard and wait until it is up. Raises YardFailed."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / NOTE).unlink(missing_ok=True)
    with (folder / LOG).open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", "console", MARK, "--folder", str(folder), *flags],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # the terminal's Ctrl-C is not for it
        )
    until_s = time.monotonic() + _UP_S
    while time.monotonic() < until_s:
        if (note := found(folder)) is not None:
            return note
        if child.poll() is not None:
            raise YardFailed(f"the yard ended at once (exit code {child.returncode}):\n{_tail(folder)}")
        time.sleep(0.02)
    child.kill()
    child.wait()
    raise YardFailed(f"the yard was not up within {_UP_S:g} s:\n{_tail(folder)}")


def end(folder: Path, note: Note) -> None:
    """End a yard and wait until it is gone."""
    until_s = time.monotonic() + _DOWN_S
    os.kill(note.pid, signal.SIGTERM)
    while not _is_dead(note.pid):
        if time.monotonic() > until_s:
            os.kill(note.pid, signal.SIGKILL)
            until_s = float("inf")
        time.sleep(0.02)
    (folder / NOTE).unlink(missing_ok=True)


def ask(folder: Path) -> tuple[dict[str, int], int]:
    """Pods by phase, and how many nodes are ready. Raises YardFailed."""
    from simulator.yard.access import NoAccess
    from simulator.yard.access import read as read_access

    try:
        access = read_access((folder / KUBECONFIG).read_bytes())
        pods, nodes = (_items(access, plural) for plural in ("pods", "nodes"))
    except (urllib.error.URLError, OSError, ValueError, NoAccess) as error:
        raise YardFailed(f"its API does not answer: {error}") from error
    phases = Counter(pod["status"]["phase"] for pod in pods)
    ready = sum(
        any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        for node in nodes
    )
    return dict(phases), ready


def _items(access: Access, plural: str) -> list[dict[str, Any]]:
    trust = ssl.create_default_context(cadata=access.authority or None)
    no_proxy = urllib.request.ProxyHandler({})  # as Go does for loopback
    opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=trust))
    headers = {"Authorization": f"Bearer {access.token}"}
    request = urllib.request.Request(f"{access.url}/api/v1/{plural}", headers=headers)
    with opener.open(request, timeout=_ANSWER_S) as answer:
        items: list[dict[str, Any]] = json.load(answer)["items"]
        return items


def _is_dead(pid: int) -> bool:
    """A child that nobody has waited for is dead, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def _tail(folder: Path) -> str:
    try:
        return "\n".join((folder / LOG).read_text(errors="replace").splitlines()[-_TOLD_LINES:])
    except OSError:
        return ""

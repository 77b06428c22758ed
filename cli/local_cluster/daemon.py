"""Start, find and end the local cluster's process, which outlives the command that started it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turnout.simulator.cluster.kubeconfig import ClusterAccess

_UP_S, _DOWN_S, _ANSWER_S = 120.0, 20.0, 10.0
_TOLD_LINES = 12


class LocalClusterFailed(Exception):
    """The local cluster did not come up, or does not answer. The message says why and what to do."""


def home() -> Path:
    """Return the folder of kubeconfig, state file and log."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "turnout" / "local"


def found(folder: Path) -> Note | None:
    """Return the local cluster that runs in this folder; None when none does, whatever an older one left behind."""
    note = _note(folder)
    return note if note is not None and not note.fault and begun_at(note.pid) == note.begun else None


def fault(folder: Path) -> str:
    """Tell what the last local cluster in this folder ended with by itself; "" when it did not, or one runs."""
    note = _note(folder)
    if note is None or found(folder) is not None:
        return ""
    return note.fault or "its process was killed"


def _note(folder: Path) -> Note | None:
    """Return the note of a running local cluster; None if it has none."""
    try:
        return read((folder / NOTE).read_bytes())
    except OSError:
        return None


def begun_at(pid: int) -> int:
    """When a process began, in ticks since the machine did, by which it is known from a later one; 0: it is dead."""
    try:
        cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if cells[0] == "Z" else int(cells[19])


def start(folder: Path, serve: Callable[[], int]) -> Note:
    """Start a local cluster in a process of its own and wait until it is up. Raises LocalClusterFailed.

    serve: what that process does.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / NOTE).unlink(missing_ok=True)
    pid = _forked(folder / LOG, serve)
    until_s = time.monotonic() + _UP_S
    while time.monotonic() < until_s:
        if (note := found(folder)) is not None:
            return note
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            raise LocalClusterFailed(f"the local cluster ended at once (exit code {code}):\n{_tail(folder)}")
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise LocalClusterFailed(f"the local cluster was not up within {_UP_S:g} s:\n{_tail(folder)}")


def _forked(log: Path, serve: Callable[[], int]) -> int:
    """Run `serve` in a child process that outlives this one, and return its process id.

    Its output goes to the file `log`. A fork is faster than a second Python, because the child needs all that is
    imported already.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    os.setsid()  # the terminal's Ctrl-C is not for it
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, opened in ((0, null), (1, out), (2, out)):
        os.dup2(opened, number)
    code = 1
    try:
        code = serve()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end(folder: Path, note: Note) -> None:
    """End a local cluster and wait until it is gone."""
    until_s = time.monotonic() + _DOWN_S
    os.kill(note.pid, signal.SIGTERM)
    while begun_at(note.pid) == note.begun:
        if time.monotonic() > until_s:
            os.kill(note.pid, signal.SIGKILL)
            until_s = float("inf")
        time.sleep(0.02)
    (folder / NOTE).unlink(missing_ok=True)


def pods_and_nodes(folder: Path) -> tuple[dict[str, int], int]:
    """Return the number of pods by phase, and how many nodes are ready. Raises LocalClusterFailed."""
    from turnout.simulator.cluster.kubeconfig import NoAccess, read_kubeconfig

    try:
        access = read_kubeconfig((folder / KUBECONFIG).read_bytes())
        pods, nodes = (_items(access, plural) for plural in ("pods", "nodes"))
    except (OSError, ValueError, NoAccess) as error:
        raise LocalClusterFailed(f"its API does not answer: {error}") from error
    phases = Counter(pod["status"]["phase"] for pod in pods)
    ready = sum(
        any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        for node in nodes
    )
    return dict(phases), ready


def _items(access: ClusterAccess, plural: str) -> list[dict[str, Any]]:
    """Return all objects of a core kind. Raises OSError."""
    import ssl
    import urllib.request  # with a tenth of the time that a help may take

    trust = ssl.create_default_context(cadata=access.authority or None)
    no_proxy = urllib.request.ProxyHandler({})  # as Go does for loopback
    opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=trust))
    headers = {"Authorization": f"Bearer {access.token}"}
    request = urllib.request.Request(f"{access.url}/api/v1/{plural}", headers=headers)
    with opener.open(request, timeout=_ANSWER_S) as answer:
        items: list[dict[str, Any]] = json.load(answer)["items"]
        return items


def _tail(folder: Path) -> str:
    """Return the last lines of the local cluster's log; "" if there is no log."""
    try:
        return "\n".join((folder / LOG).read_text(errors="replace").splitlines()[-_TOLD_LINES:])
    except OSError:
        return ""


KUBECONFIG, NOTE, LOG, PODS = "kubeconfig", "state.json", "log", "pods"
NAMESPACE, MAP_NAME = "turnout-system", "node-topology-config"
MAP = f"{NAMESPACE}/{MAP_NAME}"  # where the extender looks for it


NO_WALLS = (
    "turnout local up: this machine allows no namespaces (mount, uts, pid; unprivileged user namespaces are off): pods "
    "with volumes will not start, and pods do not find one another by name"
)


@dataclass(frozen=True, slots=True)
class Note:
    """A running local cluster."""

    pid: int  # of its process
    begun: int  # when that process began, in ticks since the machine did
    url: str  # of its API
    nodes: int
    gpus: int  # of each node
    extender: str = ""  # its URL; "" without one
    real: bool = False  # on a real control plane
    processes: bool = False  # pods run their commands
    fault: str = ""  # what a part of it failed with: then it ends


def encoded(note: Note) -> bytes:
    """Return the note as it lies in the folder."""
    return json.dumps(asdict(note)).encode()


def read(text: bytes) -> Note | None:
    """Return the note, or None when it is none."""
    try:
        fields = json.loads(text)
        numbers = {key: int(fields[key]) for key in ("pid", "begun", "nodes", "gpus")}
        return Note(**{**{key: fields[key] for key in ("url", "extender", "real", "processes", "fault")}, **numbers})
    except (ValueError, KeyError, TypeError):
        return None


def welcome(note: Note, kubeconfig: str) -> list[str]:
    """Return the lines that explain how to use the local cluster that was just started."""
    gpus = f"{note.gpus} GPUs each" if note.gpus else "without GPUs"
    extender_line = "its scheduler asks a Turnout extender" if note.extender else "its scheduler asks no extender"
    kind = "local cluster on a real control plane" if note.real else "local cluster"
    runs = ["Its pods run their commands as processes of this machine, as you."] if note.processes else []
    return [
        f"A {kind} of {note.nodes} nodes, {gpus}, is up at {note.url}; {extender_line}.",
        *runs,
        "",
        f"  export KUBECONFIG={kubeconfig}",
        "  kubectl get nodes",
        "",
        "turnout local status tells how it is, turnout local down ends it.",
    ]


def condition(note: Note, phases: dict[str, int], ready: int) -> list[str]:
    """How a local cluster is. phases: pods by phase. ready: nodes that are."""
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none"
    return [
        f"up at {note.url}, process {note.pid}" + (", on a real control plane" if note.real else ""),
        f"nodes     {ready} of {note.nodes} ready",
        f"pods      {pods}" + ("; they run as processes" if note.processes else ""),
        f"extender  {note.extender or 'none'}",
    ]

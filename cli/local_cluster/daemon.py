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
    from turnout.simulator.cluster.kubeconfig import LocalClusterAccess

_START_TIMEOUT_S, _STOP_TIMEOUT_S = 120.0, 20.0
_ANSWER_TIMEOUT_S = 10.0  # of one request to the cluster's API
_LOG_TAIL_LINES = 12  # of the log, in an error message


class LocalClusterFailed(Exception):
    """The local cluster did not start, or does not answer. The message names the cause and the remedy."""


def home() -> Path:
    """Return the folder of kubeconfig, state file and log: $XDG_STATE_HOME/turnout/local, by default below
    ~/.local/state.
    """
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "turnout" / "local"


def running_cluster(folder: Path) -> ClusterRecord | None:
    """Return the record of the local cluster that runs in this folder.

    None if the folder has no valid state file, if the record says that the cluster failed, or if its process ended.
    """
    record = _read_record(folder)
    return (
        record if record is not None and not record.fault and process_start_ticks(record.pid) == record.begun else None
    )


def failure_text(folder: Path) -> str:
    """Return why the last local cluster in this folder failed.

    "" if one runs now, or if there is no valid state file, as after `turnout local down`.
    """
    record = _read_record(folder)
    if record is None or running_cluster(folder) is not None:
        return ""
    return record.fault or "its process was killed"


def _read_record(folder: Path) -> ClusterRecord | None:
    """Return the record in the folder's state file, also of a process that ended. None if it is missing or invalid."""
    try:
        return decode_record((folder / STATE_FILE).read_bytes())
    except OSError:
        return None


def process_start_ticks(pid: int) -> int:
    """Return when the process `pid` started, in clock ticks since the machine booted; 0 if it is dead or a zombie.

    A process ID together with its start identifies a process, because the kernel reuses process IDs.
    """
    try:
        cells = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if cells[0] == "Z" else int(cells[19])


def start(folder: Path, serve: Callable[[], int]) -> ClusterRecord:
    """Start a local cluster in a child process, wait until it is up, and return its record.

    serve: what the child process runs; returns its exit code. An older state file in the folder is removed. Raises
    LocalClusterFailed if the child ends first, or is not up within _START_TIMEOUT_S; it is killed then.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / STATE_FILE).unlink(missing_ok=True)
    pid = _fork(folder / LOG, serve)
    until_s = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < until_s:
        if (record := running_cluster(folder)) is not None:
            return record
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            code = os.waitstatus_to_exitcode(status)
            raise LocalClusterFailed(f"the local cluster ended at once (exit code {code}):\n{_tail(folder)}")
        time.sleep(0.02)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise LocalClusterFailed(f"the local cluster was not up within {_START_TIMEOUT_S:g} s:\n{_tail(folder)}")


def _fork(log: Path, serve: Callable[[], int]) -> int:
    """Run `serve` in a child process that outlives this one, and return the child's process ID.

    The child's output goes to the file `log`, which is emptied first. A fork is faster than a second Python, because
    the modules that the child needs are imported already.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    os.setsid()  # Ctrl-C in the terminal does not reach the child
    null, out = os.open(os.devnull, os.O_RDONLY), os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for number, file in ((0, null), (1, out), (2, out)):
        os.dup2(file, number)
    code = 1
    try:
        code = serve()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def stop_cluster(folder: Path, record: ClusterRecord) -> None:
    """Stop a local cluster, wait until its process ended, and remove its state file.

    The process gets SIGTERM, and SIGKILL after _STOP_TIMEOUT_S. folder: of the state file. record: from that file.
    Raises ProcessLookupError if no process has that id.
    """
    until_s = time.monotonic() + _STOP_TIMEOUT_S
    os.kill(record.pid, signal.SIGTERM)
    while process_start_ticks(record.pid) == record.begun:
        if time.monotonic() > until_s:
            os.kill(record.pid, signal.SIGKILL)
            until_s = float("inf")
        time.sleep(0.02)
    (folder / STATE_FILE).unlink(missing_ok=True)


def pods_and_nodes(folder: Path) -> tuple[dict[str, int], int]:
    """Return the number of pods by phase and the number of ready nodes, read from the local cluster's API.

    folder: with its kubeconfig. Raises LocalClusterFailed if the API does not answer.
    """
    from turnout.simulator.cluster.kubeconfig import NoAccess, read_kubeconfig

    try:
        access = read_kubeconfig((folder / KUBECONFIG).read_bytes())
        pods, nodes = (_list_all(access, plural) for plural in ("pods", "nodes"))
    except (OSError, ValueError, NoAccess) as error:
        raise LocalClusterFailed(f"its API does not answer: {error}") from error
    phases = Counter(pod["status"]["phase"] for pod in pods)
    ready = sum(
        any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))
        for node in nodes
    )
    return dict(phases), ready


def _list_all(access: LocalClusterAccess, plural: str) -> list[dict[str, Any]]:
    """Return all objects of a core kind in all namespaces. plural: its name in paths, as in "pods".

    Raises OSError if the API server does not answer or refuses.
    """
    import ssl
    import urllib.request  # imported late: it takes a tenth of the time limit of --help

    tls_context = ssl.create_default_context(cadata=access.ca_pem or None)
    no_proxy = urllib.request.ProxyHandler({})  # Go programs use no proxy for loopback either
    opener = urllib.request.build_opener(no_proxy, urllib.request.HTTPSHandler(context=tls_context))
    headers = {"Authorization": f"Bearer {access.token}"}
    request = urllib.request.Request(f"{access.url}/api/v1/{plural}", headers=headers)
    with opener.open(request, timeout=_ANSWER_TIMEOUT_S) as answer:
        items: list[dict[str, Any]] = json.load(answer)["items"]
        return items


def _tail(folder: Path) -> str:
    """Return the last _LOG_TAIL_LINES lines of the local cluster's log; "" if it cannot be read. folder: of the log."""
    try:
        return "\n".join((folder / LOG).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
    except OSError:
        return ""


# Names in the folder of the local cluster; PODS is the folder of the pods' volumes and logs.
KUBECONFIG, STATE_FILE, LOG, PODS = "kubeconfig", "state.json", "log", "pods"
NAMESPACE, MAP_NAME = "turnout-system", "node-topology-config"
MAP = f"{NAMESPACE}/{MAP_NAME}"  # namespace and name of the topology ConfigMap, as the extender's flag has it


NO_NAMESPACES = (
    "this machine allows this user no namespaces (mount, uts, pid), so pods with volumes do not start, and pods do not "
    "find one another by name: run as root, or allow user namespaces (on Ubuntu 24.04: "
    "sysctl kernel.apparmor_restrict_unprivileged_userns=0)"
)


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """A local cluster, as its state file describes it; its process may have ended."""

    pid: int  # ID of its process
    begun: int  # start of that process, in clock ticks since the machine booted
    url: str  # of its API
    nodes: int  # >= 1
    gpus: int  # of each node, >= 0
    extender: str = ""  # URL of its extender; "" without an extender
    real: bool = False  # True for a real control plane, False for the simulated one
    processes: bool = False  # pods run their commands as processes of this machine
    fault: str = ""  # error with which a part of it failed; "" while it works


def encode_record(record: ClusterRecord) -> bytes:
    """Return the content of the state file: the record as a JSON object."""
    return json.dumps(asdict(record)).encode()


def decode_record(text: bytes) -> ClusterRecord | None:
    """Return the record in `text`, the content of a state file; None if it is not a valid record."""
    try:
        fields = json.loads(text)
        numbers = {key: int(fields[key]) for key in ("pid", "begun", "nodes", "gpus")}
        return ClusterRecord(
            **{**{key: fields[key] for key in ("url", "extender", "real", "processes", "fault")}, **numbers}
        )
    except (ValueError, KeyError, TypeError):
        return None


def welcome(record: ClusterRecord, kubeconfig: str) -> list[str]:
    """Return the lines that explain how to use the local cluster that was just started. kubeconfig: its path."""
    gpus = f"{record.gpus} GPUs each" if record.gpus else "without GPUs"
    extender_line = "its scheduler asks a Turnout extender" if record.extender else "its scheduler asks no extender"
    kind = "local cluster on a real control plane" if record.real else "local cluster"
    runs = ["Its pods run their commands as processes of this machine, as you."] if record.processes else []
    return [
        f"A {kind} of {record.nodes} nodes, {gpus}, is up at {record.url}; {extender_line}.",
        *runs,
        "",
        f"  export KUBECONFIG={kubeconfig}",
        "  kubectl get nodes",
        "",
        "turnout local status tells how it is, turnout local down ends it.",
    ]


def status_lines(record: ClusterRecord, phases: dict[str, int], ready: int) -> list[str]:
    """Return the lines of `turnout local status` for a cluster that runs.

    phases: number of pods by phase, {} without pods. ready: number of ready nodes.
    """
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none"
    return [
        f"up at {record.url}, process {record.pid}" + (", on a real control plane" if record.real else ""),
        f"nodes     {ready} of {record.nodes} ready",
        f"pods      {pods}" + ("; they run as processes" if record.processes else ""),
        f"extender  {record.extender or 'none'}",
    ]

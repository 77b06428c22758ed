"""The state file of a running local cluster, by which `down` and `status` find it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

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
    """The note as it lies in the folder."""
    return json.dumps(asdict(note)).encode()


def read(text: bytes) -> Note | None:
    """The note, or None when it is none."""
    try:
        fields = json.loads(text)
        numbers = {key: int(fields[key]) for key in ("pid", "begun", "nodes", "gpus")}
        return Note(**{**{key: fields[key] for key in ("url", "extender", "real", "processes", "fault")}, **numbers})
    except (ValueError, KeyError, TypeError):
        return None


def welcome(note: Note, kubeconfig: str) -> list[str]:
    """Tell a person who has just started a local cluster how to use it."""
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

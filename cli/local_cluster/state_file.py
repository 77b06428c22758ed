"""What a running yard leaves beside its kubeconfig, so that `down` and `status` find it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

KUBECONFIG, NOTE, LOG, PODS = "kubeconfig", "yard.json", "yard.log", "pods"
NAMESPACE, MAP_NAME = "turnout-system", "node-topology-config"
MAP = f"{NAMESPACE}/{MAP_NAME}"  # where the extender looks for it


NO_WALLS = (
    "turnout yard up: this machine allows no namespaces (mount, uts, pid; unprivileged user namespaces are off): pods "
    "with volumes will not start, and pods do not find one another by name"
)


@dataclass(frozen=True, slots=True)
class Note:
    """A running yard. pid: of its process; begun: when that began, in ticks. extender: its URL, "" without one.

    real: its control plane is. processes: its pods run what they say. fault: what a part of it failed with; it ends
    then.
    """

    pid: int
    begun: int
    url: str
    nodes: int
    gpus: int
    extender: str = ""
    real: bool = False
    processes: bool = False
    fault: str = ""


def written(note: Note) -> bytes:
    """The note as it lies in the folder."""
    return json.dumps(asdict(note)).encode()


def read(text: bytes) -> Note | None:
    """The note, or None when it is none."""
    try:
        told = json.loads(text)
        numbers = {key: int(told[key]) for key in ("pid", "begun", "nodes", "gpus")}
        return Note(**{**{key: told[key] for key in ("url", "extender", "real", "processes", "fault")}, **numbers})
    except (ValueError, KeyError, TypeError):
        return None


def welcome(note: Note, kubeconfig: str) -> list[str]:
    """What a person is told who has just started a yard."""
    gpus = f"{note.gpus} GPUs each" if note.gpus else "without GPUs"
    asked = "its scheduler asks a Turnout extender" if note.extender else "its scheduler asks no extender"
    kind = "yard on a real control plane" if note.real else "yard"
    runs = ["Its pods run their commands as processes of this machine, as you."] if note.processes else []
    return [
        f"A {kind} of {note.nodes} nodes, {gpus}, is up at {note.url}; {asked}.",
        *runs,
        "",
        f"  export KUBECONFIG={kubeconfig}",
        "  kubectl get nodes",
        "",
        "turnout yard status tells how it is, turnout yard down ends it.",
    ]


def condition(note: Note, phases: dict[str, int], ready: int) -> list[str]:
    """How a yard is. phases: pods by phase. ready: nodes that are."""
    pods = ", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none"
    return [
        f"up at {note.url}, process {note.pid}" + (", on a real control plane" if note.real else ""),
        f"nodes     {ready} of {note.nodes} ready",
        f"pods      {pods}" + ("; they run as processes" if note.processes else ""),
        f"extender  {note.extender or 'none'}",
    ]

"""What a running yard leaves beside its kubeconfig, so that `down` and `status` find it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

KUBECONFIG, NOTE, LOG = "kubeconfig", "yard.json", "yard.log"
MARK = "yard-serve"  # the word in a yard's command line by which it is known to be one


@dataclass(frozen=True, slots=True)
class Note:
    """A running yard. pid: of its process. extender: the URL of its verbs, "" without one."""

    pid: int
    url: str
    nodes: int
    gpus: int
    extender: str = ""


def written(note: Note) -> bytes:
    """The note as it lies in the folder."""
    return json.dumps(asdict(note)).encode()


def read(text: bytes) -> Note | None:
    """The note, or None when it is none."""
    try:
        told = json.loads(text)
        return Note(int(told["pid"]), str(told["url"]), int(told["nodes"]), int(told["gpus"]), str(told["extender"]))
    except (ValueError, KeyError, TypeError):
        return None


def welcome(note: Note, kubeconfig: str) -> list[str]:
    """What a person is told who has just started a yard."""
    gpus = f"{note.gpus} GPUs each" if note.gpus else "without GPUs"
    asked = "its scheduler asks a Turnout extender" if note.extender else "its scheduler asks no extender"
    return [
        f"A yard of {note.nodes} nodes, {gpus}, is up at {note.url}; {asked}.",
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
        f"up at {note.url}, process {note.pid}",
        f"nodes     {ready} of {note.nodes} ready",
        f"pods      {pods}",
        f"extender  {note.extender or 'none'}",
    ]

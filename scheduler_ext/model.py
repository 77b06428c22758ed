"""The nouns of the adviser: what the wire asks of it and what it says back.

The wire is in wire_kube.py, the thinking in advise.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kube.objects import Pod


@dataclass(frozen=True, slots=True)
class Answer:
    """What filter says of the nodes it was asked about."""

    kept: Sequence[str]  # in the order asked; names only from the request
    no_room: Mapping[str, str] = field(default_factory=dict)  # name -> why; preemption may try these
    forbidden: Mapping[str, str] = field(default_factory=dict)  # name -> why; nothing that leaves would help
    all_kept: bool = False  # nothing narrowed: the request's list goes back as it came


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that would have to leave for a preemptor."""

    uids: tuple[str, ...]
    pdb_violations: int = 0


class Adviser(Protocol):
    """What the HTTP rim asks. Synchronous: one request sees one world."""

    def filter(self, pod: Pod, names: Sequence[str]) -> Answer:
        """Say which of the named nodes the pod may go to."""
        ...

    def prioritize(self, pod: Pod, names: Sequence[str]) -> Sequence[tuple[str, int]]:
        """Score the named nodes, 1..10; those that would get 0 are left out."""
        ...

    def preempt(self, pod: Pod, victims: Mapping[str, Victims]) -> Mapping[str, Victims]:
        """Say which of the nodes offered for preemption, and which of their victims, help the pod."""
        ...

    def unready(self) -> str | None:
        """Say why no answer can be given yet; None when it can."""
        ...

    def describe(self) -> dict[str, Any]:
        """Tell the current world for a person: JSON types only."""
        ...

"""The demo's scenario: a fabric with shuffled names, some nodes busy already, gangs that come and go.

Only numbers and names; the Kubernetes objects made of them are in manifests.py.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from enum import Enum

LEAVES, SPINES, NODES_PER_LEAF, GPUS_PER_NODE = 8, 2, 8, 8
MOST_GANGS = len(string.ascii_uppercase) - 1  # one letter each, and one for the last act
# (pods, GPUs a pod): whole nodes mostly, some larger than a leaf, some that share nodes.
_SHAPES = ((8, 8), (4, 8), (6, 8), (3, 8), (5, 8), (12, 8), (10, 8), (8, 4), (4, 4), (6, 4), (6, 2), (8, 1))
_FULLEST = 0.88  # of all GPUs; above it a gang has to leave before the next one comes


@dataclass(frozen=True, slots=True)
class DemoNode:
    """One node and where it hangs."""

    name: str
    ip: str
    leaf: str
    spine: str


@dataclass(frozen=True, slots=True)
class DemoGang:
    """A training job of the demo: `pods` pods of `gpus` GPUs each. letter: its sign on the board."""

    letter: str
    pods: int
    gpus: int

    @property
    def name(self) -> str:
        return f"job-{self.letter.lower()}"

    @property
    def all_gpus(self) -> int:
        return self.pods * self.gpus


class ActKind(Enum):
    """The kinds of events."""

    ARRIVES = "arrives"
    LEAVES = "leaves"


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that happens."""

    word: ActKind
    gang: DemoGang


@dataclass(frozen=True, slots=True)
class Scene:
    """The whole play. busy: (node, GPUs) of pods that stand there before the curtain rises."""

    places: tuple[DemoNode, ...]  # leaf by leaf
    busy: tuple[tuple[str, int], ...]
    acts: tuple[Act, ...]


def scene(seed: int, gangs: int) -> Scene:
    """Write a play. The same seed gives the same one. gangs: 1 to MOST_GANGS."""
    dice = random.Random(seed)
    places = _places(dice)
    busy = _busy(dice, places)
    free = len(places) * GPUS_PER_NODE - sum(gpus for _, gpus in busy)
    return Scene(places, busy, _acts(dice, gangs, free, len(places) * GPUS_PER_NODE))


def _places(dice: random.Random) -> tuple[DemoNode, ...]:
    """Names say nothing of the wiring, as in a cluster that has grown: every leaf gets names from all over."""
    count = LEAVES * NODES_PER_LEAF
    numbers = list(range(1, count + 1))
    dice.shuffle(numbers)
    return tuple(
        DemoNode(
            name=f"gpu-{number:02d}",
            ip=f"10.20.0.{number}",
            leaf=f"leaf-{at // NODES_PER_LEAF + 1}",
            spine=f"spine-{at // (NODES_PER_LEAF * LEAVES // SPINES) + 1}",
        )
        for at, number in enumerate(numbers)
    )


def _busy(dice: random.Random, places: tuple[DemoNode, ...]) -> tuple[tuple[str, int], ...]:
    chosen = dice.sample(places, len(places) // 6)
    return tuple((place.name, dice.choice((2, 4, 8, 8))) for place in chosen)


def _acts(dice: random.Random, gangs: int, free: int, all_gpus: int) -> tuple[Act, ...]:
    acts: list[Act] = []
    running: list[DemoGang] = []
    for letter in string.ascii_uppercase[:gangs]:
        pods, gpus = dice.choice(_SHAPES)
        gang = DemoGang(letter, pods, gpus)
        while running and free - gang.all_gpus < (1 - _FULLEST) * all_gpus:
            ended_gang = running.pop(dice.randrange(len(running)))
            acts.append(Act(ActKind.LEAVES, ended_gang))
            free += ended_gang.all_gpus
        acts.append(Act(ActKind.ARRIVES, gang))
        running.append(gang)
        free -= gang.all_gpus
    return tuple(acts)

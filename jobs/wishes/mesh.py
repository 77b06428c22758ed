"""A mesh of parallelism as in PyTorch's DeviceMesh and Megatron: `dp=4,pp=4,ep=8,tp=8`, the outermost axis first.

Consecutive ranks differ in the innermost axis. topology/mesh.py decides where the axes are placed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from turnout.kube import labels

AXES = ("dp", "pp", "cp", "ep", "tp")
MOST_RANKS = 65_536
_AXIS = re.compile(r"([a-z]{1,8})=([1-9][0-9]{0,4})")


def read(notes: Mapping[str, str], faults: list[str]) -> tuple[tuple[str, int], ...]:
    """Return (axis, ranks along it), the outermost first; () if it is absent or unreadable."""
    text = notes.get(labels.MESH)
    if text is None:
        return ()
    found = [_AXIS.fullmatch(part.strip()) for part in text[:200].split(",")]
    axes = [(each[1], int(each[2])) for each in found if each]
    names = [name for name, _ in axes]
    good = len(axes) == len(found) and set(names) <= set(AXES) and len(set(names)) == len(names)
    if not good or prod(size for _, size in axes) > MOST_RANKS or len(text) > 200:
        expected = f"each of {', '.join(AXES)} at most once, with {MOST_RANKS} ranks in all at most"
        faults.append(f"{labels.MESH} is {text[:60]!r}: it must be as dp=4,pp=2,tp=8, {expected}")
        return ()
    return tuple(axes)

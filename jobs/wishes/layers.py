"""Layers as users write them: checked, the outermost first."""

from __future__ import annotations

from collections.abc import Iterable

from turnout.jobs.wishes.model import MOST_LAYERS, Layer


def nested(source: str, layers: Iterable[Layer], unkept: list[str]) -> tuple[Layer, ...]:
    """Return the layers, the largest first; of two whose sizes do not divide one another the larger is kept.

    Layers of one pod ask for nothing. A sentence is added for each that is not kept.
    """
    kept: list[Layer] = []
    for layer in sorted(layers, key=lambda each: -each.size):
        if layer.size < 2:
            continue
        if len(kept) == MOST_LAYERS or (kept and kept[-1].size % layer.size):
            unkept.append(
                f"{source}: the layer {str(layer.level)[:80]} of {layer.size} is not kept: it divides no other"
            )
            continue
        kept.append(layer)
    return tuple(kept)

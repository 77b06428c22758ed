"""Repair of a text before it is tokenized, on request. Source: DL-75"""

from __future__ import annotations

from collections.abc import Sequence


def repair(texts: Sequence[str]) -> list[str]:
    """Return the texts, in their order, with mojibake, control characters and odd quotes repaired by ftfy."""
    import ftfy  # its import takes a fifth of a second, which few runs need

    return [ftfy.fix_text(text) for text in texts]

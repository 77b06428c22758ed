"""Which torch and which Megatron are new enough. Finding out which one is there is the shell's."""

from __future__ import annotations

import re

OLDEST_TORCH = (2, 6)
OLDEST_MEGATRON, COUNTS_OPERATIONS = (0, 4), (0, 5)


def too_old(version: str) -> str | None:
    """What to tell somebody with this version of torch; None where it will do.

    version: as torch writes it: "2.6.0+cu124", "2.7.0a0+git1234". One without two numbers in front is a build of
    somebody's own, and passes.
    Source: VE-22: torch 1.10 cannot shrink a world
    """
    found = _two(version)
    if found is None or found >= OLDEST_TORCH:
        return None
    needed = ".".join(map(str, OLDEST_TORCH))
    return (
        f"torch {version} is too old: {needed} or newer is needed (1.10, for one, cannot shrink a world). "
        f"Install torch>={needed} in the image of the workers."
    )


def too_old_megatron(version: str) -> str | None:
    """What is wrong with this version of Megatron-LM; None where it will do. Source: DL-61"""
    found = _two(version)
    if found is None or found >= OLDEST_MEGATRON:
        return None
    return f"{version} is too old: {'.'.join(map(str, OLDEST_MEGATRON))}.0 or newer is needed"


def counts_operations(version: str) -> bool:
    """Does this Megatron-LM count floating-point operations, and keep the count in its checkpoints? Source: DL-62"""
    found = _two(version)
    return found is None or found >= COUNTS_OPERATIONS


def _two(version: str) -> tuple[int, int] | None:
    """The first two numbers; None for a build of somebody's own."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else None

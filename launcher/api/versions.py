"""Which torch is new enough. Finding out which one is there is the shell's."""

from __future__ import annotations

import re

OLDEST_TORCH = (2, 6)


def too_old(version: str) -> str | None:
    """What to tell somebody with this version of torch; None where it will do.

    version: as torch writes it: "2.6.0+cu124", "2.7.0a0+git1234". One without two numbers in front is a build of
    somebody's own, and passes.
    Source: VE-22: torch 1.10 cannot shrink a world
    """
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or (int(found[1]), int(found[2])) >= OLDEST_TORCH:
        return None
    needed = ".".join(map(str, OLDEST_TORCH))
    return (
        f"torch {version} is too old: {needed} or newer is needed (1.10, for one, cannot shrink a world). "
        f"Install torch>={needed} in the image of the workers."
    )

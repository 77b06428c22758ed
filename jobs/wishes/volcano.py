"""Volcano's placement terms on a pod, which mean the same as networkTopology on a PodGroup."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.jobs.fields import annotation_level
from turnout.jobs.wishes.model import Wish

MODE, HIGHEST_TIER = "volcano.sh/network-topology-mode", "volcano.sh/network-topology-highest-tier"


def read(annotations: Mapping[str, str], faults: list[str]) -> Wish | None:
    """Return the terms in Volcano's annotations of a pod; None without any. The default mode is hard, the default tier
    1.

    faults: receives a sentence for each unreadable value. An unreadable mode counts as soft, an unreadable tier as 1.
    """
    source = next((key for key in (MODE, HIGHEST_TIER) if key in annotations), None)
    if source is None:
        return None
    mode = annotations.get(MODE, "hard")
    if mode not in ("hard", "soft"):
        faults.append(f"{MODE} is {mode[:40]!r}: it must be hard or soft")
    level = annotation_level(annotations, HIGHEST_TIER, faults)
    return Wish(source, (1 if level is None else level) if mode == "hard" else None)

"""Place more workers for a gang that already runs: as many as find room, nearest to its members first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from turnout.topology.fabric import Fabric
from turnout.topology.model import Ask, Placement, Refusal, Rule
from turnout.topology.plan import plan


def grow(
    fabric: Fabric,
    room: npt.NDArray[np.int32],
    anchors: Sequence[tuple[int, int]],
    more: int,
    multiple: int = 1,
    widest_tier: int | None = None,
    rule: Rule = Rule.ALL_TIERS,
) -> Placement | Refusal:
    """Place up to `more` workers beside the members given as `anchors`, in whole multiples.

    room: as for plan(), with the anchors' pods already subtracted. anchors: (host id, pods) of the running members.

    Returns a Refusal only where no worker fits.
    """
    return plan(fabric, room, Ask(more, 0, more, multiple, widest_tier, tuple(sorted(anchors)), rule))

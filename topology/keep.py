"""Whether an answer given before would be given again, told without planning again.

"Yes" is certain, "no" only means: plan again. The planner asks this for every waiting gang when a few hosts change.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from topology.fabric import Fabric
from topology.model import Ask, Placement, Reason, Refusal


def still_stands(
    fabric: Fabric,
    room: npt.NDArray[np.int32],
    ask: Ask,
    answer: Placement | Refusal,
    changed: Sequence[tuple[int, int]],
) -> bool:
    """Return whether plan() would certainly give this answer again; of a refusal the same reason.

    room: as it is now. changed: (host id, its room when the answer was given) of every host that differs, or may.
    Fabric and ask are the answer's own.
    """
    units = ask.multiple
    moves = [(host, then // units, int(room[host]) // units) for host, then in changed]
    moves = [move for move in moves if move[1] != move[2]]
    if not moves:
        return True
    if isinstance(answer, Refusal):
        return _refused_still(fabric, room, ask, answer, moves)
    return False


def _refused_still(
    fabric: Fabric, room: npt.NDArray[np.int32], ask: Ask, answer: Refusal, moves: list[tuple[int, int, int]]
) -> bool:
    return answer.reason in (Reason.NO_MAP, Reason.OFF_MAP)

"""Place workers on the fullest node that holds one, as the autoscaler assumes."""

from __future__ import annotations


def place(free: list[int], gpus: int, workers: int) -> list[int] | None:
    """Take room for a whole gang and return the row of each worker.

    When it does not fit, take nothing and return None.
    """
    if sum(left // gpus for left in free if left >= gpus) < workers:
        return None
    rows: list[int] = []
    for row in sorted((row for row, left in enumerate(free) if left >= gpus), key=lambda row: (free[row], row)):
        while free[row] >= gpus and len(rows) < workers:
            free[row] -= gpus
            rows.append(row)
    return rows

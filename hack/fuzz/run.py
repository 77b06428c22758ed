"""Feed one reader for a while; a defect comes back with the input that shows it."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hack.fuzz.mutate import changed
from hack.fuzz.target import Target


@dataclass(frozen=True, slots=True)
class Found:
    """Tells what a reader did with its inputs. culprit: the input of the first defect, None if there is none."""

    inputs: int
    refused: int
    culprit: bytes | None = None
    why: str = ""


def feed(target: Target, seed: int, goes_on: Callable[[int], bool]) -> Found:
    """Give the reader changed inputs while `goes_on(inputs so far)`, and stop at the first defect.

    The same seed gives the same inputs in the same order.
    """
    rng, inputs, refused = Random(f"{target.name} {seed}"), 0, 0
    for each in target.corpus:  # what has to be taken is taken
        target.read(each)
    while goes_on(inputs):
        data = changed(target.corpus, rng)
        inputs += 1
        try:
            target.read(data)
        except target.refuses:
            refused += 1
        except Exception:
            return Found(inputs, refused, data, traceback.format_exc(limit=-3))
    return Found(inputs, refused)

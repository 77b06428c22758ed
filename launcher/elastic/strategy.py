"""Knows which strategies of parallel training can be resized safely, and the warnings for the others."""

from __future__ import annotations

import re

_ANY_SIZE = frozenset(["", "none", "single", "ddp", "torchddp", "pytorchddp", "distributeddataparallel"])

# Why a strategy cannot be resized, by the prefix of its name.
_SHARDED = "every rank holds a shard of the state; save it with torch.distributed.checkpoint, which loads in any world"
_ZERO = "ZeRO's checkpoints are of one world size; convert them to universal ones before each resize"
_GROUPS = "tensor and pipeline parallelism take whole groups of ranks; let the unit be a whole number of groups"
_WHY = {"fsdp": _SHARDED, "fullysharded": _SHARDED, "deepspeed": _ZERO, "zero": _ZERO, "megatron": _GROUPS}
_WHY_NOT = "it is not known to load its state in a world of another size"


def resizable(strategy: str, least: int, most: int) -> str | None:
    """Return the warning for an elastic job with this strategy, or None if there is none.

    strategy: as the job declares it, in any case and punctuation; "" if it declares none. least, most: numbers of
    workers.
    Source: DLRover's guide, DL-91: resizing is promised for DDP of torch alone
    """
    name = re.sub(r"[^a-z0-9]", "", strategy.lower())
    if least == most or name in _ANY_SIZE:
        return None
    why = next((why for begins, why in _WHY.items() if name.startswith(begins)), _WHY_NOT)
    return (
        f"strategy {strategy} with {least} to {most} workers: resizing is promised for DDP only. "
        f"Here {why}. To be safe, give min and max the same number."
    )

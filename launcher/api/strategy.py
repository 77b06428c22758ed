"""Which way of training in parallel may be resized without more ado, and what to say of the others."""

from __future__ import annotations

import re

_ANY_SIZE = frozenset(["", "none", "single", "ddp", "torchddp", "pytorchddp", "distributeddataparallel"])

# What stands in the way, by the letters that a strategy's name begins with.
_SHARDED = "every rank holds a shard of the state; save it with torch.distributed.checkpoint, which loads in any world"
_ZERO = "ZeRO's checkpoints are of one world size; convert them to universal ones before each resize"
_GROUPS = "tensor and pipeline parallelism take whole groups of ranks; let the unit be a whole number of groups"
_WHY = {"fsdp": _SHARDED, "fullysharded": _SHARDED, "deepspeed": _ZERO, "zero": _ZERO, "megatron": _GROUPS}
_WHY_NOT = "it is not known to load its state in a world of another size"


def resizable(strategy: str, least: int, most: int) -> str | None:
    """The warning for a job of least to most workers that trains by a strategy; None where nothing is to be said.

    strategy: as the job declares it, in any case and punctuation; "" where it declares none.
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

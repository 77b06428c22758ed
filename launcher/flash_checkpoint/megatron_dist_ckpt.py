"""For Megatron-LM with a distributed optimizer. DLRover has a separate module for it; this one equals `megatron`."""

from __future__ import annotations

from turnout.launcher.flash_checkpoint.megatron import (
    StorageType,
    load_checkpoint,
    save_checkpoint,
    wait_latest_checkpoint,
)

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

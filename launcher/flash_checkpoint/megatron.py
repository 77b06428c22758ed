"""For Megatron-LM, which has to be installed.

from turnout.launcher.flash_checkpoint.megatron import load_checkpoint, save_checkpoint
"""

from __future__ import annotations

from turnout.launcher.checkpoint.adapters.megatron import load_checkpoint, save_checkpoint, wait_latest_checkpoint
from turnout.launcher.checkpoint.engine.storage_type import StorageType

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

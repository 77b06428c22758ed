"""Megatron-LM, which has to be installed.

from turnout.launcher.flash_checkpoint.megatron import load_checkpoint, save_checkpoint
"""

from __future__ import annotations

from turnout.launcher.shell.saving.flash.choices import StorageType
from turnout.launcher.shell.saving.frameworks.megatron import load_checkpoint, save_checkpoint, wait_latest_checkpoint

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

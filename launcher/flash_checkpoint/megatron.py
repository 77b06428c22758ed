"""Megatron-LM: `from launcher.flash_checkpoint.megatron import load_checkpoint, save_checkpoint`. Needs megatron."""

from __future__ import annotations

from launcher.shell.saving.flash.choices import StorageType
from launcher.shell.saving.frameworks.megatron import load_checkpoint, save_checkpoint, wait_latest_checkpoint

__all__ = ["StorageType", "load_checkpoint", "save_checkpoint", "wait_latest_checkpoint"]

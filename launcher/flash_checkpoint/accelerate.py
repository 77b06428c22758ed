"""Accelerate: `from launcher.flash_checkpoint.accelerate import FlashState, StorageType`. Needs accelerate."""

from __future__ import annotations

from launcher.shell.saving.flash.choices import StorageType
from launcher.shell.saving.frameworks.accelerate import FlashState

__all__ = ["FlashState", "StorageType"]

"""Accelerate: `from turnout.launcher.flash_checkpoint.accelerate import FlashState, StorageType`. Needs accelerate."""

from __future__ import annotations

from turnout.launcher.shell.saving.flash.choices import StorageType
from turnout.launcher.shell.saving.frameworks.accelerate import FlashState

__all__ = ["FlashState", "StorageType"]

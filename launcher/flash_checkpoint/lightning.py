"""For Lightning: `from turnout.launcher.flash_checkpoint.lightning import FlashCheckpoint`. Needs lightning."""

from __future__ import annotations

from turnout.launcher.checkpoint.adapters.lightning import FlashCheckpoint

__all__ = ["FlashCheckpoint"]

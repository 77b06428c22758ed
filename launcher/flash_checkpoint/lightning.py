"""Lightning: `from launcher.flash_checkpoint.lightning import FlashCheckpoint`. Needs lightning."""

from __future__ import annotations

from launcher.shell.saving.frameworks.lightning import FlashCheckpoint

__all__ = ["FlashCheckpoint"]

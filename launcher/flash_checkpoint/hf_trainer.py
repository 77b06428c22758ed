"""Hugging Face's Trainer: `from launcher.flash_checkpoint.hf_trainer import FlashCkptTrainer`. Needs transformers."""

from __future__ import annotations

from launcher.shell.saving.frameworks.hugging_face import FlashCkptTrainer, FlashSaves

__all__ = ["FlashCkptTrainer", "FlashSaves"]

"""For Hugging Face's Trainer; transformers has to be installed.

from turnout.launcher.flash_checkpoint.hf_trainer import FlashCkptTrainer
"""

from __future__ import annotations

from turnout.launcher.checkpoint.adapters.hugging_face import FlashCkptTrainer, FlashSaves

__all__ = ["FlashCkptTrainer", "FlashSaves"]

"""Turnout: topology-aware gangs, queue-aware elasticity and memory checkpoints for GPU training on Kubernetes.

A training script imports what it needs from here; torch is imported with the first name that needs it. Beside this
file lie links to the packages at the top of the tree: they make `turnout` the only name that an installation takes.
"""

from __future__ import annotations

import os.path
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turnout.launcher.checkpoint.dcp.writer import FlashStorageReader, FlashStorageWriter
    from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer
    from turnout.launcher.elastic.batch import ElasticBatch
    from turnout.launcher.elastic.lr_scaling import Rule, following, scaled, warmed, world_of
    from turnout.launcher.elastic.sampler import ElasticSampler
    from turnout.launcher.elastic.steps import Steps
    from turnout.launcher.flash_checkpoint import (
        DdpCheckpointer,
        FsdpShardCheckpointer,
        KeepLatestStepStrategy,
        KeepStepIntervalStrategy,
        StorageType,
    )

# In a checkout the packages beside this file are links. They are loaded from the folders that the links name, so that
# the paths of a traceback are paths that git knows.
if os.path.islink(os.path.join(os.path.dirname(__file__), "launcher")):
    __path__ = [os.path.dirname(os.path.dirname(os.path.abspath(__file__)))]

_HOMES = {
    "Checkpointer": "turnout.launcher.checkpoint.engine.checkpointer",
    "DdpCheckpointer": "turnout.launcher.flash_checkpoint",
    "ElasticBatch": "turnout.launcher.elastic.batch",
    "ElasticSampler": "turnout.launcher.elastic.sampler",
    "FlashStorageReader": "turnout.launcher.checkpoint.dcp.writer",
    "FlashStorageWriter": "turnout.launcher.checkpoint.dcp.writer",
    "FsdpShardCheckpointer": "turnout.launcher.flash_checkpoint",
    "KeepLatestStepStrategy": "turnout.launcher.flash_checkpoint",
    "KeepStepIntervalStrategy": "turnout.launcher.flash_checkpoint",
    "Rule": "turnout.launcher.elastic.lr_scaling",
    "Steps": "turnout.launcher.elastic.steps",
    "StorageType": "turnout.launcher.flash_checkpoint",
    "following": "turnout.launcher.elastic.lr_scaling",
    "scaled": "turnout.launcher.elastic.lr_scaling",
    "warmed": "turnout.launcher.elastic.lr_scaling",
    "world_of": "turnout.launcher.elastic.lr_scaling",
}

__all__ = [
    "Checkpointer",
    "DdpCheckpointer",
    "ElasticBatch",
    "ElasticSampler",
    "FlashStorageReader",
    "FlashStorageWriter",
    "FsdpShardCheckpointer",
    "KeepLatestStepStrategy",
    "KeepStepIntervalStrategy",
    "Rule",
    "Steps",
    "StorageType",
    "following",
    "scaled",
    "warmed",
    "world_of",
]


def __getattr__(name: str) -> object:
    """Import a public name from its room, once, when it is asked for first."""
    if name not in _HOMES:
        raise AttributeError(f"module 'turnout' has no attribute {name!r}")
    found: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})

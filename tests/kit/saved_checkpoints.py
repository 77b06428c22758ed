"""Read a folder of checkpoints that another part of the test has saved."""

from __future__ import annotations

from contextlib import closing

from turnout.launcher.checkpoint.engine.checkpointer import Checkpointer


def newest(folder):
    """Load the newest step of replicated state. The checkpoint daemon that this needs ends before the return."""
    with closing(Checkpointer(folder, replicated=True)) as checkpoints:
        return checkpoints.load()

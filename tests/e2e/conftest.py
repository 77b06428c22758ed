"""A stage for gang stories: a real API server and scheduler, fake GPU nodes, and our programs as processes."""

from __future__ import annotations

import random

import pytest

from tests.e2e.stage import Stage


@pytest.fixture
def stage(control_plane):
    """64 nodes of 8 GPUs on 8 leaves and 4 spines, names shuffled over the fabric; nothing of ours runs yet."""
    return Stage(control_plane, random.Random(7))

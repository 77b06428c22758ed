"""Jobs that end with the test."""

from __future__ import annotations

import pytest_asyncio

from tests.launcher.checkpoint.replication.world import Job


@pytest_asyncio.fixture
async def job(tmp_path):
    """Makes jobs: job(3), job(2, bytes_s=1 << 20)."""
    jobs = []

    def make(size, **options):
        jobs.append(Job(tmp_path, size, **options))
        return jobs[-1]

    yield make
    for each in jobs:
        await each.close()

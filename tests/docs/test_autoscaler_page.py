"""docs/autoscaler.md: what `turnout why` says of a job that waits, on a local cluster as the page has it."""

import pytest

from hack.lint.code_blocks import run_by
from tests.autoscaler.local_cluster import local_cluster_with_jobs
from tests.cli.verbs.transcripts import commands, still, typed


def words(printed):
    """The words without the lines, which are broken elsewhere when a span of time is longer. No time is a span, too."""
    return " ".join(still(printed)).replace("at once", "SPAN").split()


@pytest.mark.asyncio
async def test_the_page_shows_why_a_job_waits(tmp_path):
    (block,) = run_by("tests/docs/test_autoscaler_page.py::test_the_page_shows_why_a_job_waits")
    ((command, printed),) = commands([block])
    async with local_cluster_with_jobs(tmp_path) as cluster:
        await cluster.autoscaler("--act")
        await cluster.submit("alpha", 2, 8)
        await cluster.until(alpha=8)
        await cluster.submit("beta", 7)
        await cluster.says('"NeedsMore"')
        assert words(await typed(command, cluster.kubeconfig)) == words(printed)

"""Grow and shrink an Indexed Job: its controller knows nothing of training, and its pods have no Service.

The tests run in order: each begins where the one before it ended.
"""

from __future__ import annotations

import pytest
import pytest_asyncio

from tests.e2e.launcher.operated import PLAIN_JOBS
from tests.e2e.whole_cluster.world import clock, job_b, job_d, start_autoscalers, whole_cluster

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, tmp_path_factory):
    async with whole_cluster(module_plane, tmp_path_factory.mktemp("story"), tmp_path_factory.mktemp("pods")) as world:
        await world.fill()
        await world.submit("d", job_d(world.folder))
        yield world


async def size(world):
    spec = (await world.api.call("GET", f"{PLAIN_JOBS}/d"))["spec"]
    return spec["parallelism"], spec["completions"]


async def test_an_indexed_job_grows_into_the_idle_gpus_and_goes_on_from_memory(world):
    await world.trains(1)
    since_s = clock()
    await start_autoscalers(world)
    step = await world.took("1 worker becomes 4", since_s, 4)
    assert world.sources(step) == {"memory"}
    assert await size(world) == (4, 4)
    await world.goes_on()


async def test_it_gives_way_to_a_job_that_needs_its_min_and_loses_no_step(world):
    since_s = clock()
    await world.submit("b", job_b(world.folder))
    step = await world.took("4 workers become 2", since_s, 2)
    assert world.sources(step) == {"memory"}
    assert await size(world) == (2, 2)
    last = world.history.of("ended", why="stop")[-1]
    assert step.step == last.step + 1  # none was lost, and none was trained again
    await world.until(lambda _: all((world.folder / f"b-{index}").exists() for index in range(2)))
    words_of_leavers = {name: words for name, words in world.last_words.items() if name.startswith(("d-2-", "d-3-"))}
    assert len(words_of_leavers) == 2
    assert all("reason=drained" in words for words in words_of_leavers.values())


async def test_it_is_complete_once_the_workers_that_are_left_are_done(world):
    epoch = world.history.look().newest().epoch
    (world.folder / "history" / "epochs").write_text(str(epoch + 1))
    await world.condition("d", "Complete", PLAIN_JOBS)
    assert (await world.api.call("GET", f"{PLAIN_JOBS}/d"))["status"].get("failed", 0) == 0
    world.print_times()

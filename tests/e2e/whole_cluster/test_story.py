"""The whole local cluster: a training job grows, shrinks, loses a node, and never loses a step.

One story of job A, told in order: each test is its next step and begins where the one before it ended. What holds of
all of it is asked at the end, of what every rank has written down.
"""

from __future__ import annotations

import asyncio
import os
import signal
from itertools import pairwise

import pytest
import pytest_asyncio

from tests.e2e.autoscaler.lending import leader, log_lines
from tests.e2e.launcher.operated import JOBS, PLAIN_JOBS, conditions
from tests.e2e.whole_cluster.undisturbed import undisturbed
from tests.e2e.whole_cluster.world import (
    AUTOSCALERS,
    BATCH,
    LEASES,
    SAMPLES,
    clock,
    job_a,
    job_b,
    start_autoscalers,
    whole_cluster,
)
from tests.kit.saved_checkpoints import newest
from turnout.launcher.rendezvous.arbiter import ROUND, unseal

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_plane, tmp_path_factory):
    async with whole_cluster(module_plane, tmp_path_factory.mktemp("story"), tmp_path_factory.mktemp("pods")) as world:
        await world.fill()
        await world.submit("a", job_a(world.folder))
        yield world


def last_round(world):
    return list(world.history.rounds().values())[-1]


def leaf_changes(world):
    """Between how many ranks and their next the leaf changes."""
    leaves = [world.leaf(each.node) for each in last_round(world)]
    return sum(one != other for one, other in pairwise(leaves))


async def test_a_job_of_one_worker_grows_into_the_idle_gpus_under_one_leaf(world):
    await world.trains(1)
    since_s = clock()
    await start_autoscalers(world)
    step = await world.took("1 worker becomes 4", since_s, 4)
    assert world.sources(step) == {"memory"}
    await world.goes_on()
    assert len({world.leaf(each.node) for each in last_round(world)}) == 1


async def test_a_job_gets_its_min_within_seconds_and_the_other_goes_on_smaller(world):
    since_s = clock()
    await world.submit("b", job_b(world.folder))
    step = await world.took("4 workers become 2", since_s, 2)
    await world.until(lambda _: all((world.folder / f"b-{index}").exists() for index in range(2)))
    world.note("until the other job runs", since_s, max((world.folder / f"b-{at}").stat().st_mtime for at in range(2)))
    assert {each.worker for each in last_round(world)} == {"a-worker-0", "a-worker-1"}
    assert world.sources(step) == {"memory"}
    last = world.history.of("ended", why="stop")[-1]
    assert step.step == last.step + 1  # none was lost, and none was trained again
    for leaver in ("a-worker-2", "a-worker-3"):
        assert "reason=drained" in world.last_words[leaver]


async def test_training_does_not_notice_that_others_start_anew(world):
    """The API server, the extender, and the autoscaler that leads."""
    before = last_round(world)[0].round
    lead = leader(world.stage, AUTOSCALERS)
    await asyncio.to_thread(world.plane.kill_program, lead)
    await asyncio.to_thread(world.plane.restart_apiserver)
    await asyncio.to_thread(world.plane.stop_program, "extender")
    await asyncio.to_thread(world.stage.start_extender)
    await world.goes_on(20)
    assert last_round(world)[0].round == before
    world.lead = next(name for name in AUTOSCALERS if name != lead)


async def test_it_grows_again_once_the_other_has_ended(world):
    """Expect growth by the autoscaler that was not the leader before."""
    since_s = clock()
    (world.folder / "b-ends").touch()
    step = await world.took("2 workers become 4", since_s, 4)
    assert world.sources(step) == {"memory"}
    assert log_lines(world.stage, "resized", world.lead)
    await world.goes_on()


async def test_a_process_is_killed_and_all_go_on_from_memory(world):
    pid = world.history.look().process(rank=2)
    since_s = clock()
    os.kill(pid, signal.SIGKILL)
    step = await world.took("a process is killed", since_s, 4)
    assert world.sources(step) == {"memory"}
    await world.goes_on()


async def test_a_lost_nodes_worker_gets_its_bytes_from_another_memory(world):
    await world.api.call("DELETE", f"{PLAIN_JOBS}/c", {"propagationPolicy": "Background"})
    await world.until(lambda _: not any(name.startswith("c-") for name in world.pods))
    lost_process = next(each for each in last_round(world) if each.worker == "a-worker-2")
    since_s = clock()
    await world.lose_node(lost_process.node)
    step = await world.took("a node is lost", since_s)
    assert world.sources(step) == {"memory"}
    step = await world.took("its worker is back", since_s, 4)
    assert world.sources(step) == {"memory"}
    back = next(each for each in last_round(world) if each.worker == "a-worker-2")
    assert back.node != lost_process.node
    assert len(world.uids["a-worker-2"]) > 1
    assert "step_fetched" in world.log("a-worker-2")  # its bytes came over a socket: what its old pod had is gone
    await world.goes_on()
    assert leaf_changes(world) == 1  # it is under the other leaf, and no rank of the first one is behind it


async def test_the_pod_of_the_coordinator_is_lost(world):
    lease = await world.api.call("GET", f"{LEASES}/a")
    holder = unseal(lease["metadata"]["annotations"][ROUND].encode()).coordinator.split("/")[0]
    since_s = clock()
    await world.lose(holder)
    step = await world.took("the coordinator is lost", since_s)
    assert world.sources(step) == {"memory"}
    step = await world.took("its worker is back", since_s, 4)
    assert world.sources(step) == {"memory"}


async def test_the_job_succeeds(world):
    epoch = world.history.look().newest().epoch
    (world.folder / "history" / "epochs").write_text(str(epoch + 2))
    await world.condition("a", "Succeeded")
    assert not conditions(await world.api.call("GET", f"{JOBS}/a")) & {"Failed"}
    world.epochs = epoch + 2
    world.print_times()


async def test_each_sample_was_trained_on_once_in_each_epoch(world):
    sample_records = world.history.look().samples()
    assert list(sample_records) == list(range(1, len(sample_records) + 1))
    samples_by_epoch = {epoch: [] for epoch in range(world.epochs)}
    for ranks in sample_records.values():
        assert len(ranks) == ranks[0].world
        assert len({(each.cursor, each.epoch) for each in ranks}) == 1
        samples_by_epoch[ranks[0].epoch] += [sample for each in ranks for sample in each.samples]
    assert all(sorted(samples) == list(range(SAMPLES)) for samples in samples_by_epoch.values())


async def test_no_step_but_that_in_flight_ran_twice_and_worlds_never_overlapped(world):
    rounds = world.history.rounds()
    for before, after in pairwise(rounds):
        newest_step = max((each.step for each in world.history.of("stepped", round=before)), default=-1)
        if newest_step >= 0:
            assert newest_step - 1 <= rounds[after][0].step <= newest_step, (before, after)
        last_s = max(each.at_s for each in world.history.records if each.round == before)
        assert last_s < rounds[after][0].at_s
        assert len({each.step for each in rounds[after]}) == 1


async def test_batch_and_rate_stayed_what_they_were_whatever_the_world(world):
    for ranks in world.history.samples().values():
        shares = [len(each.samples) for each in ranks]
        assert sum(shares) == min(BATCH, SAMPLES - ranks[0].cursor)
        assert max(shares) - min(shares) <= 1
    assert {each.rate for each in world.history.of("stepped")} == {0.05}


async def test_losses_and_model_equal_those_of_undisturbed_training(world):
    undisturbed_run = await asyncio.to_thread(undisturbed, world.folder, world.epochs)
    steps = world.history.steps()
    assert len(steps) == len(undisturbed_run.losses)
    for step, ranks in steps.items():
        assert [each.loss for each in ranks] == pytest.approx([undisturbed_run.losses[step]] * len(ranks), rel=1e-9)
    loaded = newest(world.folder / "checkpoints")
    assert loaded.step == len(steps)
    for name, weights in undisturbed_run.state["model"].items():
        assert loaded.state["model"][name].numpy() == pytest.approx(weights.numpy(), rel=1e-9)

"""Probes on real processes with real gloo: what they measure, and what is known of those that are stuck or broken."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.kit.child_processes import children_of
from tests.kit.wait import until
from turnout.launcher.addresses import free_port
from turnout.launcher.health.judge_nodes import next_groups_or_verdict
from turnout.launcher.health.model import Check, FaultCause, ProbeStage
from turnout.launcher.health.probe_messages import ProbePlan, ProbeSizes, group_measurement
from turnout.launcher.health.probes.runner import COMMAND, probe

pytestmark = pytest.mark.slow

FAULTY = (sys.executable, str(Path(__file__).with_name("faulty_probe.py")))
SIZES = ProbeSizes(matmul=64, matmul_times=5, reduce_bytes=1 << 16, reduce_times=5, pair_bytes=1 << 16, pair_times=3)


def pair(tmp_path, **changes):
    """The plans of two members of one process each."""
    port = free_port("127.0.0.1")
    return [
        ProbePlan(rank, 2, 2, "127.0.0.1", port, sizes=SIZES, disk=str(tmp_path), memory="/dev/shm", **changes)
        for rank in range(2)
    ]


async def run(plans, faults):
    """A process each, side by side, as two nodes would: those with a fault are wrapped."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    nodes = [
        probe([plan], env | {"FAULTS": fault}, FAULTY if fault else COMMAND)
        for plan, fault in zip(plans, faults, strict=True)
    ]
    return [reports[0] for reports in await asyncio.gather(*nodes)]


@pytest.fixture(scope="module")
def stories(tmp_path_factory):
    """Pairs of nodes, by what is wrong with the second one. All of them at once: they mostly wait."""
    folder = tmp_path_factory.mktemp("disk")

    async def all_of_them():
        named = {
            "slow product,clock ahead": pair(folder),
            "stuck all-reduce": pair(folder, stage_s=3.0),
            "broken product": pair(folder),
        }
        runs = [run(plans, ("", faults)) for faults, plans in named.items()]
        return dict(zip(named, await asyncio.gather(*runs), strict=True))

    return asyncio.run(all_of_them())


def test_a_pair_measures_itself_alone_and_together(stories):
    for report in stories["slow product,clock ahead"]:
        assert report.stage is ProbeStage.DONE
        assert not report.fault
        assert report.compute_s > 0
        assert report.collective_s > 0
        assert report.bandwidth_bytes_s > 0
        assert report.disk_bytes > 0
        assert report.memory_bytes > 0
        assert report.device_used is None, "there is no device on CPUs"


def test_a_slow_product_and_a_wrong_clock_are_those_of_their_node(stories):
    well, slow = stories["slow product,clock ahead"]
    assert slow.compute_s >= 0.05 > well.compute_s
    assert well.clock_ahead_s == 0
    assert slow.clock_ahead_s == pytest.approx(3600, abs=slow.clock_within_s + 0.1)


def test_one_that_is_stuck_with_the_others_is_killed_and_blames_nobody(stories):
    waiting_node, stuck = stories["stuck all-reduce"]
    assert stuck.fault == "stuck in collective, killed"
    assert waiting_node.stage is ProbeStage.COLLECTIVE
    assert waiting_node.fault
    found = group_measurement(("n0", "n1"), [waiting_node, stuck])
    assert found.collective_s is None
    assert None not in found.compute_s


def test_a_broken_device_is_known_at_once_and_the_other_node_passes_alone(stories):
    waiting_node, broken = stories["broken product"]
    assert broken.stage is ProbeStage.COMPUTE
    assert "an error of this device" in broken.fault
    assert waiting_node.stage is ProbeStage.MEETING
    assert "broken" in waiting_node.fault
    verdict = next_groups_or_verdict(
        Check(("n0", "n1")).add_round((group_measurement(("n0", "n1"), [waiting_node, broken]),))
    )
    assert [(each.nodes, each.cause) for each in verdict.bad_nodes] == [(("n1",), FaultCause.COMPUTE_FAILED)]


@pytest.mark.parametrize(
    ("command", "why"),
    [
        pytest.param(("/no/such/program",), "it could not be started", id="that is not there"),
        pytest.param(("/bin/cat",), "ended in begun with 1", id="that ends at once"),
        pytest.param(("/bin/echo",), "invalid report", id="that tells something else"),
        pytest.param(("/bin/sh", "-c", "yes '{}'", "sh"), "more than 64 reports", id="that does not cease to tell"),
        pytest.param(("/bin/sh", "-c", "sleep 600 & wait", "sh"), "stuck in begun, killed", id="that says nothing"),
    ],
)
def test_of_a_program_that_is_no_probe_only_that_is_known(tmp_path, command, why):
    (plan, _) = pair(tmp_path, meet_s=0.0 if "killed" in why else 60.0)
    (report,) = asyncio.run(probe([plan], os.environ, command))
    assert report.fault.startswith(why)
    assert report.compute_s is None


def test_a_check_that_is_given_up_leaves_no_probe_running(tmp_path):
    file = tmp_path / "pid"
    command = ("/bin/sh", "-c", f"echo $$ > {file}.new; mv {file}.new {file}; sleep 600", "sh")

    async def given_up():
        task = asyncio.create_task(probe([pair(tmp_path)[0]], os.environ, command))
        await asyncio.to_thread(until, file.exists, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(given_up())
    assert not Path(f"/proc/{int(file.read_text())}").exists()


@pytest.mark.parametrize("turns", range(12))
def test_a_check_given_up_while_its_probe_starts_leaves_none_running(tmp_path, turns):
    """turns: how many turns of the event loop the start has had when it is cancelled."""

    async def given_up():
        task = asyncio.create_task(probe([pair(tmp_path)[0]], os.environ, ("/bin/sh", "-c", "exec sleep 600", "sh")))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    before, open_before = set(children_of(os.getpid())), set(os.listdir("/proc/self/fd"))
    asyncio.run(given_up())
    assert not set(children_of(os.getpid())) - before
    assert not set(os.listdir("/proc/self/fd")) - open_before

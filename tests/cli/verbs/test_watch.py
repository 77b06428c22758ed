"""A listing that is watched, as a process: it prints what changes, and ends as a shell expects."""

import asyncio
import signal
import sys

import pytest
import pytest_asyncio

from tests.autoscaler.local_cluster import JOBS, manifest
from turnout.cli.exit_codes import ExitCode
from turnout.simulator.local_cluster import local_cluster


@pytest_asyncio.fixture
async def cluster(tmp_path):
    async with local_cluster(tmp_path / "kubeconfig") as local:
        yield local


async def started(tmp_path, *argv):
    words = ("-m", "turnout.cli", *argv, "--kubeconfig", str(tmp_path / "kubeconfig"))
    return await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)


async def ended(child):
    async with asyncio.timeout(30):
        return await child.wait()


@pytest.mark.asyncio
async def test_a_new_job_is_printed_and_ctrl_c_ends_it_with_130(cluster, tmp_path):
    await cluster.api.call("POST", JOBS, manifest("first", 1))
    child = await started(tmp_path, "jobs", "-w", "-o", "name")
    try:
        async with asyncio.timeout(30):
            assert await child.stdout.readline() == b"VolcanoJob/default/first\n"
            await cluster.api.call("POST", JOBS, manifest("second", 1))
            assert await child.stdout.readline() == b"VolcanoJob/default/second\n"
        child.send_signal(signal.SIGINT)
        assert await ended(child) == ExitCode.INTERRUPTED
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.mark.asyncio
async def test_when_nobody_reads_any_more_it_ends_with_141(cluster, tmp_path):
    await cluster.api.call("POST", JOBS, manifest("first", 1))
    words = f"{sys.executable} -m turnout.cli jobs -w -o name --kubeconfig {tmp_path / 'kubeconfig'}"
    script = f"{words} | head -n 1; echo ${{PIPESTATUS[0]}}"
    child = await asyncio.create_subprocess_exec("bash", "-c", script, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(30):
            assert await child.stdout.readline() == b"VolcanoJob/default/first\n"
            await asyncio.sleep(0)
            await cluster.api.call("POST", JOBS, manifest("second", 1))
            assert int(await child.stdout.readline()) == ExitCode.BROKEN_PIPE
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()

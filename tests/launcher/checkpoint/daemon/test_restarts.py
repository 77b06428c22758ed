"""A daemon that dies is replaced at once, and neither its agent nor its training process loses what memory holds."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
from contextlib import contextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kit.wait import until_async
from tests.launcher.checkpoint.daemon.test_daemon import record, save
from turnout.launcher.checkpoint.arena.arena import Arena
from turnout.launcher.checkpoint.arena.arena_files import private_folder
from turnout.launcher.checkpoint.daemon.agent_client import AgentClient, ChildDaemon
from turnout.launcher.checkpoint.daemon.trainer_client import TrainerClient
from turnout.launcher.checkpoint.format.daemon_messages import Hello, Save
from turnout.launcher.coordinator_messages import HeldStep
from turnout.launcher.env import DAEMON

pytestmark = pytest.mark.asyncio


class Worker:
    """An agent's and a training process's ends of one worker's daemons. pids: of these, the newest last."""

    def __init__(self, folder: Path) -> None:
        self._sockets, self.said = private_folder(folder), []
        self.daemon = ChildDaemon(Path(self._sockets.name), folder, "job", "w0", self._say)
        self.agent = AgentClient(self.daemon, self._say)
        self.trainer = None

    def _say(self, event, fields):
        self.said.append((event, dict(fields)))

    @property
    def pid(self):
        return self.daemon.pid

    async def connect(self):
        hello = Hello("job", "w0", 0, 0, 1, 1)
        args = (
            hello,
            os.environ | {DAEMON: self.daemon.environment[DAEMON]},
            Path(self._sockets.name),
            lambda message: None,
        )
        self.trainer = await asyncio.to_thread(TrainerClient, *args)
        path = await asyncio.to_thread(self.trainer.reserve, record(0).region_bytes, 3)
        return Arena.open(path)

    async def kill(self):
        """Kill the daemon, and wait for the next one. Give whether a training process had to ask for that."""
        before = self.pid
        os.kill(before, signal.SIGKILL)
        await until_async(lambda: self.pid not in (None, before))

    def seal(self, arena, step):
        generation, sealed = save(arena, step)
        self.trainer.link.announce_save(Save(generation, sealed.epoch, step))

    async def held(self):
        return [each.step for each in await asyncio.to_thread(self.trainer.held_steps, 1)]

    async def close(self):
        if self.trainer is not None:
            await asyncio.to_thread(self.trainer.close)
        await self.daemon.close(done=True)
        self._sockets.cleanup()


@pytest_asyncio.fixture
async def worker(tmp_path):
    new_worker = Worker(tmp_path)
    await new_worker.daemon.listen()
    yield new_worker
    await new_worker.close()


async def test_a_training_process_goes_on_with_the_next_daemon_and_loses_nothing(worker):
    arena = await worker.connect()
    await asyncio.to_thread(worker.seal, arena, 3)
    assert await worker.held() == [3]
    await worker.kill()
    assert await worker.held() == [3]
    await asyncio.to_thread(worker.seal, arena, 4)
    await asyncio.to_thread(worker.trainer.link.wait_pinned)
    assert await worker.held() == [4, 3]


async def test_a_save_of_which_the_dead_daemon_was_told_is_told_to_the_next(worker):
    arena = await worker.connect()
    os.kill(worker.pid, signal.SIGSTOP)
    await asyncio.to_thread(worker.seal, arena, 3)
    await worker.kill()
    await asyncio.to_thread(worker.trainer.link.wait_pinned)
    assert await worker.held() == [3]


async def test_the_next_daemon_starts_although_nobody_connects(worker):
    arena = await worker.connect()
    await asyncio.to_thread(worker.seal, arena, 3)
    assert await worker.held() == [3]
    await asyncio.to_thread(worker.trainer.close)
    worker.trainer = None
    await worker.kill()
    assert await worker.agent.held_steps(1) == (HeldStep(3, 0, 2, 1),)
    assert [fields for event, fields in worker.said if event == "daemon_lost"] == [{"exit": -9, "next_in_s": 0.0}]


async def test_what_the_agent_asks_a_daemon_that_dies_is_answered_by_the_next(worker):
    arena = await worker.connect()
    await asyncio.to_thread(worker.seal, arena, 3)
    assert await worker.held() == [3]
    os.kill(worker.pid, signal.SIGSTOP)
    asking = asyncio.create_task(worker.agent.held_steps(1))
    await worker.kill()
    assert [each.step for each in await asking] == [3]


@contextmanager
def no_more_files():
    """This process can open no file, so that it can start no other process either."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def failed_starts(worker):
    """What is logged of starts that failed, without the error's words."""
    return [fields["next_in_s"] for event, fields in worker.said if event == "daemon_not_started"]


async def test_a_daemon_that_cannot_start_at_a_connection_is_tried_again(worker):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.setblocking(False)
        with no_more_files():
            await asyncio.get_running_loop().sock_connect(connection, str(worker.daemon.path))
            await until_async(lambda: failed_starts(worker))
        await until_async(lambda: worker.pid is not None)
    assert failed_starts(worker)[0] == 0.5


async def test_an_agent_whose_daemon_cannot_start_gets_no_steps_and_goes_on(worker):
    arena = await worker.connect()
    await asyncio.to_thread(worker.seal, arena, 3)
    assert await worker.held() == [3]
    await asyncio.to_thread(worker.trainer.close)
    worker.trainer, before = None, worker.pid
    with no_more_files():
        os.kill(before, signal.SIGKILL)
        await until_async(lambda: failed_starts(worker))
        assert await worker.agent.held_steps(1) == ()
    await until_async(lambda: worker.pid is not None)
    assert await worker.agent.held_steps(1) == (HeldStep(3, 0, 2, 1),)

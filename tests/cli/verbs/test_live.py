"""`turnout top --live`: what is drawn, what stays when the API server is silent, and how it ends."""

import asyncio
import io
import os
import pty
import signal
import sys

import pytest
from rich.console import Console

from turnout.cli.__main__ import main
from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.live_listing import screen, show_live
from turnout.cli.views.top import NodeOffer, PodGpus, listing, rows
from turnout.kube.errors import Unreachable
from turnout.simulator.cluster.node_builder import NodeSpec
from turnout.simulator.local_cluster import local_cluster

HELD = [PodGpus(f"VolcanoJob/team-a/job-{at}", "team-a", "research", f"gpu-{at}", at) for at in range(1, 9)]
OFFERS = [NodeOffer(f"gpu-{at}", 8) for at in range(1, 9)]


def top(by="job", holders=HELD, notes=("36 of 64 GPUs are held",)):
    return listing(by, rows(by, holders, OFFERS), notes)


def console(height=30):
    return Console(file=io.StringIO(), force_terminal=True, width=100, height=height, color_system=None)


def drawn(found, height=30, heading="GPUs by job", is_stale=False):
    terminal = console(height)
    terminal.print(screen(found, heading, is_stale, height))
    return terminal.file.getvalue()


@pytest.mark.parametrize(
    ("text", "present"),
    [
        pytest.param("36 of 64 GPUs are held", True, id="the summary"),
        pytest.param("VolcanoJob/team-a/job-8", True, id="the job that holds most"),
        pytest.param("12.5%", True, id="its share"),
        pytest.param("█", True, id="a bar"),
        pytest.param("more rows do not fit", False, id="no line about rows that do not fit"),
    ],
)
def test_a_screen_shows(text, present):
    assert (text in drawn(top())) is present


@pytest.mark.parametrize("height", [6, 8, 10])
def test_no_screen_is_higher_than_the_terminal(height):
    text = drawn(top(), height)
    assert len(text.splitlines()) <= height
    assert "more rows do not fit" in text
    assert "job-8" in text


def test_a_name_cannot_move_the_cursor():
    text = drawn(top(holders=[PodGpus("Pod/a/\x1b[2Jx", "a", "q", "gpu-1", 1)]), heading="GPUs in \x1b[2J")
    assert "\x1b[2J" not in text


def test_an_empty_cluster_says_so():
    assert "nobody asks for GPUs here" in drawn(top(holders=[]))


class HandClock:
    """A clock moved by its sleeps. After the last one it cancels."""

    def __init__(self, sleeps):
        self.now_s, self._sleeps = 1000.0, sleeps

    def wall(self):
        return self.now_s

    async def sleep(self, seconds):
        self.now_s += seconds
        self._sleeps -= 1
        if not self._sleeps:
            raise asyncio.CancelledError


@pytest.mark.asyncio
async def test_without_an_answer_the_last_rows_stay_with_their_age():
    answers = [top(), Unreachable("GET", "/api/v1/pods", 0, ""), top(holders=HELD[:1], notes=())]
    terminal = console()

    async def look():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    with pytest.raises(asyncio.CancelledError):
        await show_live(look, "GPUs by job", HandClock(3), terminal)
    text = terminal.file.getvalue()
    assert "no answer; this is 2 s old" in text
    assert text.count("job-8") == 2  # in the first two screens
    assert text.count("job-1") == 3


@pytest.mark.asyncio
async def test_on_a_terminal_a_new_node_appears_and_ctrl_c_ends_it_with_130(tmp_path):
    async with local_cluster(tmp_path / "kubeconfig") as cluster:
        parent, child_end = pty.openpty()
        words = ("-m", "turnout.cli", "top", "--live", "--kubeconfig", str(tmp_path / "kubeconfig"))
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "20"}
        child = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdin=child_end, stdout=child_end, env=environment
        )
        os.close(child_end)
        try:
            async with asyncio.timeout(30):
                await until_text(parent, b"0 of 0 GPUs are held")
                await cluster.add_nodes([NodeSpec("gpu-1", "10.0.0.1", ("spine", "leaf"))], 8)
                await until_text(parent, b"0 of 8 GPUs are held")
                child.send_signal(signal.SIGINT)
                assert await until_closed(parent, child) == ExitCode.INTERRUPTED
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()
            os.close(parent)


async def until_text(parent, text):
    read = b""
    while text not in read:
        read += await asyncio.to_thread(os.read, parent, 65536)


async def until_closed(parent, child):
    """Read on, so that the child is not blocked by a full terminal, and return how it ended."""
    try:
        while await asyncio.to_thread(os.read, parent, 65536):
            pass
    except OSError:  # the child has closed its end
        pass
    return await child.wait()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        pytest.param([], "use --watch", id="stdout is no terminal"),
        pytest.param(["-o", "json"], "use --watch", id="JSON for a file"),
    ],
)
def test_what_cannot_be_live_ends_as_a_wrong_use(words, message, capsys):
    assert main(["top", "--live", *words]) == ExitCode.USAGE
    assert message in capsys.readouterr().err

"""Rank 0 listens before the others come: who is refused by torch's store waits for a quarter of a second or more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from turnout.launcher.workers.forkserver import server
from turnout.launcher.workers.forkserver.server import is_listening, wait_before_first, wait_until_listening

LONG_S = 600.0  # a test that waits so long has failed


@pytest.fixture(params=[("127.0.0.1", socket.AF_INET), ("::1", socket.AF_INET6)], ids=["IPv4", "IPv6"])
def bound(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    address, family = request.param
    with socket.socket(family) as found:
        found.bind((address, 0))
        yield found


def env(rank: int, port: int | str) -> dict[str, str]:
    return {"RANK": str(rank), "MASTER_PORT": str(port)}


@pytest.mark.parametrize(
    "results",
    [
        pytest.param(is_listening, id="as it is asked"),
        pytest.param(server._is_listening_by_proc, id="where the kernel does not tell"),
    ],
)
def test_a_socket_listens_from_the_moment_that_it_does(bound: socket.socket, results: Callable[[int], bool]) -> None:
    port = bound.getsockname()[1]
    assert not results(port)
    bound.listen()
    assert results(port)
    with socket.create_connection(bound.getsockname()[:2]):
        bound.close()
        assert not results(port)  # what is connected listens to nobody


def test_rank_0_is_waited_for_until_it_listens_and_no_longer(bound: socket.socket) -> None:
    port = bound.getsockname()[1]
    thread = threading.Thread(target=wait_until_listening, args=(env(0, port), LONG_S), daemon=True)
    thread.start()
    assert thread.is_alive()
    bound.listen()
    thread.join(LONG_S / 60)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param({}, id="a process that is no rank"),
        pytest.param(env(3, 1), id="another rank, whose store is elsewhere"),
        pytest.param(env(0, ""), id="rank 0 without a store"),
        pytest.param(env(0, "http"), id="rank 0 whose port is no number"),
    ],
)
def test_nobody_waits_behind(names: dict[str, str]) -> None:
    wait_until_listening(names, LONG_S)


def test_a_worker_that_has_rank_0_begins_at_once() -> None:
    wait_before_first(env(0, 1), LONG_S)
    wait_before_first({}, LONG_S)

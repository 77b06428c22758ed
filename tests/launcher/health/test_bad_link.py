"""Two good hosts whose packets to one another are lost: found by real probes, and one of them goes."""

from __future__ import annotations

import pytest

from hack.chaos.testbed.hosts import Hosts
from tests.launcher.agent.crew import Crew


@pytest.fixture
def hosts():
    """Three, each in a network namespace of its own."""
    new_hosts = Hosts(3)
    yield new_hosts
    new_hosts.end()


@pytest.fixture
def job(tmp_path, hosts):
    """Three agents, each on a host of its own, of which two are enough."""
    more = (
        "--max-restarts",
        "1",
        "--last-call-s",
        "2",
        "--network-check",
        "--probe-stage-s",
        "3",
        "--probe-meet-s",
        "25",
    )
    token = tmp_path / "token"
    token.write_text("a token of these three hosts")
    crew = Crew(tmp_path / "crew", "2:3", *more, "--token-file", str(token))
    crew.endpoint = ("--rdzv-endpoint", f"{hosts.address(1)}:29400")
    yield crew
    crew.end()


@pytest.mark.root
@pytest.mark.debian("iproute2")
@pytest.mark.long
def test_of_two_hosts_that_cannot_reach_each_other_the_younger_leaves(job, hosts):
    """DL-81: a link, not a node, is told to be bad."""
    hosts.partition(2, 3)
    agents = []
    for at in (1, 2, 3):
        agents.append(job.start(f"w{at}", prefix=hosts.inside(at), env={"GLOO_SOCKET_IFNAME": "eth0"}))
        agents[-1].until("coordinator_found")
    first = job.world(2, seconds=200)
    assert {life.name for life in first} == {"w1", "w2"}
    assert job.codes(agents[2]) == [138]
    (ended,) = agents[2].entries("agent_ended")
    assert (ended["reason"], "does not reach w2" in ended["detail"]) == ("link_faulty", True)
    (link,) = agents[0].entries("link_faulty")
    assert link["members"] == "w2, w3"
    job.finish()
    assert job.codes(*agents[:2]) == [0, 0]

"""The size of a world between min and max: who comes late, who leaves a gap, who fills it."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from tests.kit.wait import until

AHEAD = ("--heartbeat-s", "0.2", "--silence-s", "5", "--last-call-s", "0")  # with a parent that imports ahead
SLOW = "imports_slowly"


@pytest.mark.contract("CS-17", "DL-87", "PE-02", "PE-06", "PE-12")
def test_grows_from_one_to_three(crew):
    """PE-12, DL-87, PE-02: the elastic command line; each size is a round of its own."""
    job = crew("1:4", "--last-call-s", "0")
    job.start("w0")
    first = job.world(1)
    job.start("w1")
    job.start("w2")
    last = job.world(3, after=first[0].round)
    job.finish()
    assert job.codes() == [0, 0, 0]
    assert last[0].round > first[0].round
    assert {life.restarts for life in last} == {0}, "growth is no fault"
    job.check_one_world()


@pytest.mark.contract("DL-88", "DL-89", "DL-90")
def test_two_to_three_to_two(crew):
    """DL-88, DL-89, DL-90: starts with min, grows with who joins, shrinks with who dies."""
    job = crew("2:4", "--last-call-s", "0.3")
    one, two = job.start("w0"), job.start("w1")
    small = job.world(2)
    three = job.start("w2")
    grown = job.world(3, after=small[0].round)
    three.kill()
    job.world(2, after=grown[0].round)
    job.finish()
    assert job.codes(one, two) == [0, 0]
    assert "w2" in (one.entries("round_ended") + two.entries("round_ended"))[-1]["detail"]
    job.check_one_world()


@pytest.mark.slow
def test_a_replacement_takes_the_place(crew):
    """Below min the job waits; who comes back under the same name gets the same rank, and the others keep theirs."""
    job = crew("3")
    agents = job.gather(3)
    before = {life.name: life.rank for life in job.world(3)}
    agents[1].kill()
    agents[0].until("member_lost", member="w1")
    replacement = job.start("w1")
    after = job.world(3, after=1)
    job.finish()
    assert job.codes(agents[0], agents[2], replacement) == [0, 0, 0]
    assert {life.name: life.rank for life in after} == before
    assert {life.restarts for life in after} == {0}
    job.check_one_world()


@pytest.mark.slow
def test_a_replacement_that_comes_before_the_loss_is_seen(crew, tmp_path):
    """A controller may start a worker anew before anybody has noticed that the old one is gone."""
    job = crew("2", "--silence-s", "20", "--round-dir", str(tmp_path / "rounds"))
    agents = job.gather(2)
    agents[1].signal(19)
    replacement = job.start("w1")
    job.world(2, after=1)
    job.finish()
    assert job.codes(agents[0], replacement) == [0, 0]


@pytest.mark.slow
def test_spares(crew, tmp_path):
    """Above max, and what a unit leaves over, waits; it takes a lost one's place, and ends well with the others."""
    job = crew("2:4", "--node-unit", "2", "--round-dir", str(tmp_path / "rounds"))
    agents = job.gather(4)
    spare = job.start("w4")
    spare.until("spare", reason="spare")
    agents[3].kill()
    world = job.world(4, after=1)
    assert {life.name for life in world} == {"w0", "w1", "w2", "w4"}
    agents[2].kill()
    small = job.world(2, after=world[0].round)
    job.finish()
    assert job.codes(agents[0], agents[1], spare) == [0, 0, 0]
    assert small[0].world == 2
    job.check_one_world()


@pytest.mark.contract("DL-107")
def test_the_log_gives_addresses_by_rank(crew):
    """DL-107: after each rendezvous, in the order of the ranks, which here is not that of the names."""
    job = crew("2", "--max-restarts", "1", at="127.0.0.2")
    places = {"w0": ("127.0.0.2", "spine/b"), "w1": ("127.0.0.3", "spine/a")}
    agents = [
        job.start(name, "--local-addr", address, "--path", path, "--rdzv-conf", f"is_host={int(name == 'w0')}")
        for name, (address, path) in places.items()
    ]
    os.kill(job.world(2)[0].pid, signal.SIGKILL)
    job.world(2, after=1)
    job.finish()
    assert job.codes(*agents) == [0, 0]
    by_rank = {round_: [places[life.name][0] for life in lives] for round_, lives in job.worlds().items()}
    assert by_rank == {1: ["127.0.0.3", "127.0.0.2"], 2: ["127.0.0.3", "127.0.0.2"]}
    formed = {entry["round"]: entry["ips"] for agent in agents for entry in agent.entries("world_formed")}
    assert formed == {round_: str(tuple(addresses)) for round_, addresses in by_rank.items()}


@pytest.mark.slow
def test_terms_that_differ_are_refused(crew):
    """A worker whose command line says another world is told so, and the job goes on without it."""
    job = crew("2")
    job.start("w0").until("coordinator_begun")
    stranger = job.start("other", "--nnodes", "3")
    assert stranger.code() == 1
    assert "3:3" in stranger.until("agent_ended", reason="refused")["detail"]
    job.start("w1")
    job.world(2)
    job.finish()
    assert job.codes(job.agents[0], job.agents[2]) == [0, 0]


@pytest.mark.slow
@pytest.mark.contract("VE-25")
def test_the_others_wait_until_the_first_answers(crew):
    """VE-25: who starts before worker 0 looks for it until it is there."""
    job = crew("2")
    away = ("--rdzv-conf", "is_host=0")
    early = job.start("w1", *away)
    early.until("coordinator_sought")
    job.start("w0", "--rdzv-conf", "is_host=1")
    world = job.world(2)
    job.finish()
    assert job.codes() == [0, 0]
    assert [life.round for life in world] == [1, 1]


@pytest.mark.slow
@pytest.mark.root
@pytest.mark.debian("iproute2")
def test_others_wait_for_the_first_worker(crew, hosts, tmp_path):
    """VE-25: a worker that comes before worker 0 knocks until its endpoint answers."""
    net, token = hosts(2), tmp_path / "token"
    token.write_text("a token of these two hosts")
    job = crew("2", "--token-file", str(token))
    job.endpoint = ("--rdzv-endpoint", f"{net.address(1)}:29400")
    early = job.start("w1", prefix=net.inside(2))
    until(lambda: knocks(net, 2), "it knocks")
    first = job.start("w0", prefix=net.inside(1))
    world = job.world(2)
    job.finish()
    assert job.codes(first, early) == [0, 0]
    assert {life.env["MASTER_ADDR"] for life in world} <= {net.address(1), net.address(2)}
    assert not early.leads


def knocks(net, at) -> bool:
    """True if that host, which listens too, has tried to open a connection."""
    command = (*net.inside(at), "cat", "/proc/net/snmp")
    sockets = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line.split() for line in sockets.splitlines()]
    names, values = (line for line in lines if line[0] == "Tcp:")
    return int(dict(zip(names, values, strict=True))["ActiveOpens"]) > 0


# A newcomer that still imports: the world trains on until it could begin with it.


def newcomer(job, name="w1"):
    """An agent whose parent of processes imports a module that takes as long as we like."""
    listener = job.folder / "listener"
    os.mkfifo(listener)
    (job.folder / f"{SLOW}.py").write_text(f"open({str(listener)!r}).read()")
    path = {"PYTHONPATH": os.pathsep.join((os.getcwd(), str(job.folder)))}
    return job.start(name, "--preload", SLOW, env=path, arguments=("steps",)), listener


def steps_of(job, round_):
    file = job.folder / "steps"
    done = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [each["step"] for each in done if each["round"] == round_]


def trains_on(job, round_):
    """Wait until the job makes twenty more steps in this round."""
    step_count = len(steps_of(job, round_))
    until(lambda: len(steps_of(job, round_)) >= step_count + 20, lambda: f"round {round_} trains on\n{job.log_text()}")


def test_a_world_trains_on_while_a_newcomer_imports_and_grows_once_it_has(crew):
    job = crew("1:2", quick=AHEAD)
    first = job.start("w0", "--preload", "json", arguments=("steps",))
    one = job.world(1)[0].round
    trains_on(job, one)
    late, listener = newcomer(job)
    assert "imports" in late.until("spare")["detail"]
    trains_on(job, one)
    assert first.entries("round_ended") == []
    listener.write_text("that is all")
    first.until("member_ready", member="w1")
    two = job.world(2, after=one)[0].round
    trains_on(job, two)
    job.finish()
    assert job.codes() == [0, 0]
    assert [each["reason"] for each in first.entries("round_ended")] == ["member_joined"]
    assert late.entries("processes_spawned") == [], "they were forked from the parent that has imported it"
    assert steps_of(job, two)[0] == steps_of(job, one)[-1] + 1
    job.check_one_world()


@pytest.mark.slow
def test_a_newcomer_whose_imports_fail_grows_the_world_all_the_same(crew):
    """A parent that dies of them is none that anybody waits for: its processes begin without."""
    job = crew("1:2", quick=AHEAD)
    first = job.start("w0", "--preload", "json", arguments=("steps",))
    one = job.world(1)[0].round
    trains_on(job, one)
    (job.folder / "torch.py").write_text("import os; os._exit(3)")  # the first module of all
    path = {"PYTHONPATH": os.pathsep.join((os.getcwd(), str(job.folder)))}
    late = job.start("w1", env=path, arguments=("steps",))
    job.world(2, after=one)
    job.finish()
    assert job.codes() == [0, 0]
    assert first.entries("round_ended")[0]["reason"] == "member_joined"
    assert late.entries("processes_spawned") != []

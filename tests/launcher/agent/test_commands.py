"""The command lines of the guides, as people type them, and the closed table of exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.launcher.agent.crew import RUN, TOY
from turnout.launcher.addresses import free_port

BIN = Path(sys.executable).parent
SEEN = {"PATH": f"{BIN}:{os.environ['PATH']}"}


@pytest.mark.contract("DL-36", "PE-08", "PE-10")
@pytest.mark.parametrize("program", ["turnout-run", "dlrover-run"])
def test_alone_in_a_container(crew, program):
    """DL-36, PE-08, PE-10: no master, no server, no address; every process has its rank."""
    job = crew()
    line = f"{program} --no-fork --standalone --nnodes=1 --nproc_per_node=$N {TOY} {job.folder}"
    agent = job.start("alone", argv=("/bin/bash", "-c", line), env=SEEN | {"N": "2"})
    world = job.world(2)
    job.finish()
    assert agent.code() == 0
    assert [(life.rank, life.env["LOCAL_RANK"], life.env["LOCAL_WORLD_SIZE"]) for life in world] == [
        (0, "0", "2"), (1, "1", "2"),
    ]  # fmt: skip
    assert {life.env["MASTER_ADDR"] for life in world} == {"127.0.0.1"}


def test_a_worker_that_is_alone_leaves_its_given_port_to_its_processes(crew):
    """A script that meets at tcp://HOST:PORT listens there itself, in each round."""
    job = crew()
    script, port = job.folder / "meets.py", free_port("127.0.0.1")
    script.write_text(
        "import os, socket, sys\n"
        "server = socket.create_server(('', int(sys.argv[1])))\n"
        "print(os.environ['MASTER_ADDR'], os.environ['MASTER_PORT'], flush=True)\n"
        "sys.exit(os.environ['TORCHELASTIC_RESTART_COUNT'] == '0')\n"
    )
    options = ("--no-fork", "--nnodes=1", "--max-restarts=1", f"--master-port={port}")
    agent = job.start("w0", argv=(*RUN, *options, str(script), str(port)), env={"POD_IP": "192.0.2.1"})
    assert agent.code() == 0, job.log_text()
    assert agent.out.read_text() == f"127.0.0.1 {port}\n" * 2


@pytest.mark.contract("PE-34")
@pytest.mark.parametrize("word", ["1", ""], ids=["1", "empty, of which torchrun dies"])
def test_a_pytorchjob_that_stands_alone(crew, word):
    """PE-34: what the operator sets is enough, also what else it sets for a job that could be larger."""
    job = crew()
    environ = {
        "PET_STANDALONE": word,
        "PET_NNODES": "1:3",
        "PET_NPROC_PER_NODE": "2",
        "PET_RDZV_ENDPOINT": "a-worker-0:1",
    }
    agent = job.start("alone", argv=(*RUN, "--no-fork", str(TOY), str(job.folder)), env=environ)
    world = job.world(2)
    job.finish()
    assert agent.code() == 0
    assert {life.env["MASTER_ADDR"] for life in world} == {"127.0.0.1"}


@pytest.mark.contract("DL-42", "PE-11")
def test_two_nodes_of_fixed_size(crew):
    """PE-11, DL-42: the fault-tolerant command line, the same on each node, inside bash -c."""
    job = crew()
    options = "--nnodes=$NODE_NUM --nproc_per_node=2 --max_restarts=3 --rdzv_id=5 --rdzv_backend=c10d"
    line = f"dlrover-run --no-fork {options} --rdzv_endpoint=127.0.0.1:{job.port} {TOY} {job.folder}"
    agents = [
        job.start(f"w{at}", argv=("/bin/bash", "-c", line), env=SEEN | {"NODE_NUM": "2", "POD_NAME": f"job-{at}"})
        for at in range(2)
    ]
    world = job.world(4)
    job.finish()
    assert job.codes(*agents) == [0, 0]
    assert {life.env["TORCHELASTIC_MAX_RESTARTS"] for life in world} == {"3"}
    assert {life.env["GROUP_RANK"] for life in world} == {"0", "1"}


@pytest.mark.root
@pytest.mark.debian("iproute2")
@pytest.mark.contract("CS-17", "DL-38")
def test_nobody_gives_an_address(crew, hosts):
    """DL-38: two agents of one host find each other, and their processes are told where rank 0 is."""
    net = hosts(1)
    job = crew("2", quick=("--no-fork",))
    job.endpoint = ()
    agents = [job.start(f"w{at}", prefix=net.inside(1)) for at in range(2)]
    world = job.world(2)
    job.finish()
    assert job.codes(*agents) == [0, 0]
    for agent in agents:
        assert "127.0.0.1:29400" in agent.until("noted", word="no address")["detail"]
    waited = [entry for agent in agents for entry in agent.entries("round_waits")]
    assert {(entry["at"], entry["wanted"]) for entry in waited} == {("127.0.0.1:29400", 2)}
    assert len({(life.env["MASTER_ADDR"], life.env["MASTER_PORT"]) for life in world}) == 1


@pytest.mark.contract("DL-41")
def test_arguments_of_the_script_are_left_alone(crew):
    """DL-41: what looks like an option of ours behind the script is the script's."""
    job = crew()
    script = job.folder / "tell.py"
    script.write_text("import sys; print(sys.argv[1:])")
    given = ["--nnodes=7", "-m", "--", "--name", "a b", ""]
    agent = job.start("w0", argv=(*RUN, "--standalone", "--no-fork", str(script), *given))
    assert agent.code() == 0
    assert agent.out.read_text() == f"{given}\n"


@pytest.mark.contract("DL-29", "DL-93")
def test_the_budget_is_spent(crew):
    """DL-29: `--max-restarts 2` and a script that always fails: three runs, then exit 1."""
    job = crew("2", "--max-restarts", "2")
    agents = [job.start(f"w{at}", arguments=("fail",)) for at in range(2)]
    assert job.codes() == [1, 1]
    assert {agent.entries("agent_ended")[0]["reason"] for agent in agents} == {"budget_spent"}
    assert [lives[0].restarts for lives in job.worlds().values()] == [0, 1, 2]


@pytest.mark.contract("DL-92", "PE-04")
def test_one_of_four_processes_is_killed(crew):
    """PE-04: all four are started anew, once, and all know the same restart count."""
    job = crew("2", "--nproc-per-node", "2", "--max-restarts", "3")
    for at in range(2):
        job.start(f"w{at}")
    before = job.world(4)
    os.kill(before[3].pid, signal.SIGKILL)
    after = job.world(4, after=before[0].round)
    job.finish()
    assert job.codes() == [0, 0]
    assert not {life.pid for life in before} & {life.pid for life in after}
    assert [life.restarts for life in after] == [1] * 4
    assert list(job.worlds()) == [1, 2], "one fault is one restart"
    job.check_one_world()


def test_all_processes_fail_at_once(crew):
    """One fault is charged, however many processes die of it. Source: target 14"""
    job = crew("3", "--max-restarts", "1")
    for at in range(3):
        job.start(f"w{at}")
    before = job.world(3)
    for life in before:
        with contextlib.suppress(ProcessLookupError):  # its agent was quicker: it ended this one for the first's sake
            os.kill(life.pid, signal.SIGKILL)
    after = job.world(3, after=before[0].round)
    job.finish()
    assert job.codes() == [0, 0, 0]
    assert [life.restarts for life in after] == [1] * 3
    assert len(job.worlds()) == 2


def test_nobody_is_done_before_the_last(crew):
    """Exit 0 comes behind a barrier of the whole world."""
    job = crew("2", script=Path(__file__).with_name("scripts") / "waits.py")
    quick = job.start("w0")
    quick.until("coordinator_begun")
    slow = job.start("w1")
    quick.until("processes_done")
    slow.until("processes_started")
    assert quick.process.poll() is None
    job.finish()
    assert job.codes(quick, slow) == [0, 0]
    assert quick.until("job_ended")["time"] >= slow.until("processes_done")["time"]


@pytest.mark.parametrize(("options", "why"), [
    pytest.param(("--nnodes", "0", "x.py"), "0", id="no workers"),
    pytest.param(("--no-such-option", "x.py"), "--no-such-option", id="an option that nobody knows"),
    pytest.param((), "nothing to run", id="nothing to run"),
    pytest.param(("--nnodes", "2", "--rdzv-endpoint", "192.0.2.1:29400", "--local-addr", "192.0.2.2", str(TOY)),
                 "token", id="other hosts without a token"),
    pytest.param(("--nnodes", "2", "--token-file", "/no/such/file", str(TOY)), "/no/such/file", id="no token there"),
    pytest.param(("--standalone", "no-file.py"), "no script 'no-file.py'", id="a script that is not there"),
])  # fmt: skip
def test_a_command_line_that_cannot_be_obeyed(crew, options, why):
    agent = crew().start("w0", argv=(*RUN, *options))
    assert agent.code() == 2
    assert why in agent.log.read_text()


def test_ctrl_c(crew):
    job = crew("1")
    agent = job.start("w0")
    job.world(1)
    agent.signal(signal.SIGINT)
    assert agent.code() == 130


@pytest.mark.contract("DL-91")
def test_resizing_is_promised_for_ddp_only(crew):
    """DL-91: the user is told before anything starts."""
    job = crew("1:2", "--strategy", "fsdp")
    assert "DDP" in job.start("w0").until("noted", about="--strategy")["detail"]

"""The rendezvous' address, name and kind: given as options, else taken from the pod's environment."""

import pytest

from turnout.launcher.cli.to_settings import read
from turnout.launcher.settings import Backend, LockKind, NoteSubject, Settings


def settings(line, environ=None):
    found = read([*line.split(), "train.py"], environ or {})
    assert isinstance(found, Settings), found.text
    return found


POD = {"POD_NAME": "a-worker-2"}
MASTER = {"MASTER_ADDR": "a-master-0", "MASTER_PORT": "23456"}


@pytest.mark.contract("PE-07", "PE-13", "PE-33")
@pytest.mark.parametrize(
    ("line", "environ", "address"),
    [
        pytest.param("", {}, ("127.0.0.1", 0), id="one worker needs no address"),
        pytest.param("", MASTER, ("127.0.0.1", 0), id="nor one that inherits somebody's"),
        pytest.param("--master-port=2950", {}, ("127.0.0.1", 0), id="nor one that names a port of its processes"),
        pytest.param("--master-addr=h --master-port=2950", {}, ("127.0.0.1", 0), id="nor one that names its host"),
        pytest.param("--rdzv-endpoint=h:2950", {}, ("h", 2950), id="at an endpoint a spare may come"),
        pytest.param("--nnodes=2", {}, ("127.0.0.1", 29400), id="two that are told nothing meet on their machine"),
        pytest.param("--nnodes=2 --rdzv-endpoint=h", {}, ("h", 29400), id="the default port, PE-13"),
        pytest.param("--nnodes=2 --rdzv-endpoint=[::1]:7", {}, ("::1", 7), id="IPv6 in brackets"),
        pytest.param("--nnodes=2 --rdzv-endpoint=h:1 --master-addr=x", {}, ("h", 1), id="the endpoint wins, PE-16"),
        pytest.param("--nnodes=2 --master-addr=h", {}, ("h", 29500), id="torchrun's static port"),
        pytest.param("--nnodes=2 --master_addr=::1 --master_port=1", {}, ("::1", 1), id="static, whole"),
        pytest.param("--nnodes=2", MASTER, ("a-master-0", 23456), id="a PyTorchJob with a master"),
        pytest.param("--nnodes=2", {"MASTER_ADDR": "m"}, ("m", 29500), id="a master without a port"),
        pytest.param("--nnodes=2", {**MASTER, "PET_MASTER_ADDR": "m"}, ("m", 23456), id="PET_ is stronger"),
        pytest.param("--nnodes=2 --lease=n/l", POD, ("", 29400), id="the Lease tells where"),
        pytest.param("--nnodes=2 --lease=n/l --arbiter=none", POD, ("a-worker-0", 29400), id="a Lease nobody asks"),
        pytest.param("--nnodes=2 --round-dir=/s", POD, ("", 29400), id="the folder tells where"),
        pytest.param("--nnodes=2", POD, ("a-worker-0", 29400), id="worker 0 of the same job, PE-33"),
        pytest.param("--nnodes=2", {"POD_NAME": "a-x7b2k"}, ("127.0.0.1", 29400), id="a pod without a number"),
        pytest.param("--nnodes=2 --rdzv-backend=etcd --rdzv-endpoint=e:2379", POD, ("a-worker-0", 29400), id="etcd"),
        pytest.param(
            "--nnodes=2 --rdzv-backend=etcd-v2 --rdzv-endpoint=e:2379 --master-addr=m", {}, ("m", 29500), id="etcd-v2"
        ),
    ],
)
def test_where_they_meet(line, environ, address):
    meeting = settings(line, environ).rendezvous
    assert (meeting.host, meeting.port) == address


@pytest.mark.parametrize(
    ("line", "port"),
    [
        pytest.param("--nnodes=1 --master-port=2950", 2950, id="alone"),
        pytest.param("--standalone --master-port=2950", 2950, id="standalone"),
        pytest.param("--nnodes=1", 0, id="no port is asked for"),
        pytest.param("--nnodes=2 --master-addr=h --master-port=2950", 0, id="the coordinator of several listens there"),
        pytest.param("--nnodes=1 --rdzv-endpoint=h:2950 --master-port=2950", 0, id="so does that of an endpoint"),
    ],
)
def test_processes_of_a_worker_that_is_alone_meet_at_its_given_port(line, port):
    assert settings(line).rendezvous.store_port == port


@pytest.mark.parametrize(
    ("line", "environ", "about"),
    [
        pytest.param("--nnodes=2", {}, "--nnodes", id="no address"),
        pytest.param("", {"PET_NNODES": "1:4"}, "PET_NNODES", id="nor one of an elastic job"),
        pytest.param("--nnodes=2", {"POD_NAME": "a-x7b2k"}, "--nnodes", id="a pod without a number"),
        pytest.param("--nnodes=2 --rdzv-endpoint=127.0.0.1:29400", {}, None, id="the same place, but said"),
        pytest.param("--nnodes=2 --master-addr=127.0.0.1 --master-port=29400", {}, None, id="said otherwise"),
        pytest.param("--nnodes=2", {"MASTER_ADDR": "h"}, None, id="said by the pod"),
        pytest.param("--nnodes=2", POD, None, id="a pod with a number"),
        pytest.param("--nnodes=2 --round-dir=/s", {}, None, id="a folder tells where"),
        pytest.param("--nnodes=1", {}, None, id="one worker needs none"),
        pytest.param("--standalone --nnodes=1:2", {}, None, id="nor one that stands alone"),
    ],
)
def test_several_workers_that_are_told_no_address_are_told_what_is_missing(line, environ, about):
    notes = [note for note in settings(line, environ).notes if note.word is NoteSubject.NO_ADDRESS]
    assert [note.about for note in notes] == ([about] if about else [])
    assert all("127.0.0.1:29400" in note.why and "--rdzv-endpoint" in note.why for note in notes)


@pytest.mark.parametrize(
    ("line", "environ", "reason"),
    [
        pytest.param(
            "--nnodes=2 --rdzv-backend=etcd --rdzv-endpoint=e:1", {}, "its server is not asked", id="etcd alone"
        ),
        pytest.param("--nnodes=2", {"MASTER_ADDR": "m", "MASTER_PORT": "tcp://x"}, "MASTER_PORT is", id="no port"),
        pytest.param("--nnodes=2 --rdzv-endpoint=h:99999", {}, "--rdzv-endpoint is", id="a port above all ports"),
        pytest.param("--arbiter=lease", {}, "needs --lease", id="a Lease without a name"),
        pytest.param("--arbiter=file", {}, "needs --round-dir", id="a file without a folder"),
    ],
)
def test_a_meeting_that_nobody_could_find_is_refused(line, environ, reason):
    assert reason in read([*line.split(), "train.py"], environ).text


@pytest.mark.parametrize(
    ("environ", "hosts"),
    [
        pytest.param({"DLROVER_MASTER_ADDR": "m:1", "PET_RDZV_ENDPOINT": "m:1"}, False, id="not where the master does"),
        pytest.param({"DLROVER_MASTER_ADDR": "m:1", "PET_RDZV_ENDPOINT": "h:1"}, True, id="at an endpoint of its own"),
        pytest.param({"DLROVER_MASTER_ADDR": "m:1"}, True, id="beside a master that coordinates nothing here"),
    ],
)
def test_whether_worker_0_of_an_elasticjob_listens_for_the_others(environ, hosts):
    assert settings("--nnodes=2", {"NODE_RANK": "0", **environ}).rendezvous.is_host is hosts


@pytest.mark.parametrize("backend", [each.value for each in Backend if each is not Backend.STATIC])
def test_a_named_back_end_stays_when_the_job_is_elastic(backend):
    found = settings(f"--nnodes=1:3 --rdzv-backend={backend} --master-addr=m")
    assert (found.rendezvous.backend.value, found.notes) == (backend, ())


@pytest.mark.contract("PE-15")
@pytest.mark.parametrize("line", ["--nnodes=1:3", "--nnodes=1:3 --rdzv-backend=static"], ids=["unsaid", "static"])
def test_an_elastic_job_gets_the_dynamic_rendezvous_and_is_told(line):  # PE-15
    found = settings(f"{line} --master-addr=m")
    assert found.rendezvous.backend is Backend.C10D
    assert [note.word for note in found.notes] == [NoteSubject.OTHER_BACKEND]


def test_a_fixed_job_stays_static():
    assert settings("--nnodes=3").rendezvous.backend is Backend.STATIC


@pytest.mark.contract("PE-16")
@pytest.mark.parametrize("backend", ["etcd", "etcd-v2"])
def test_the_user_of_etcd_is_told_that_its_server_is_not_asked(backend):  # PE-16
    found = settings("", {**POD, "PET_NNODES": "1:3", "PET_RDZV_BACKEND": backend, "PET_RDZV_ENDPOINT": "etcd:2379"})
    assert [(note.about, note.word) for note in found.notes] == [("PET_RDZV_ENDPOINT", NoteSubject.NO_EFFECT)]


@pytest.mark.contract("PE-14")
@pytest.mark.parametrize(
    ("line", "environ", "run"),
    [
        pytest.param("--nnodes=2 --rdzv-id=a", {"JOB_UID": "u"}, "a", id="given"),
        pytest.param("--nnodes=2", {"PET_RDZV_ID": "p", "JOB_UID": "u"}, "p", id="by the operator"),
        pytest.param("--nnodes=2", {"JOB_UID": "u", "ELASTIC_JOB_NAME": "n"}, "u", id="the job's uid, PE-14"),
        pytest.param("--nnodes=2", {"TURNOUT_JOB": "t", "JOB_UID": "u"}, "t", id="our own variable before it"),
        pytest.param("--nnodes=2 --rdzv-id=none", {"SLURM_JOB_ID": "77"}, "77", id="torchrun's none is no id"),
        pytest.param("--nnodes=2", {"JOB_UID": ""}, "none", id="nobody knows: torchrun's none"),
        pytest.param("", {}, "", id="who is alone makes one"),
    ],
)
def test_what_the_job_is_called(line, environ, run):
    assert settings(line, environ).rendezvous.run == run


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        pytest.param("--nnodes=2", LockKind.MAJORITY, id="more than half, where nothing is given"),
        pytest.param("--nnodes=2 --round-dir=/s", LockKind.FILE, id="a shared folder"),
        pytest.param("--nnodes=2 --round-dir=/s --lease=n/l", LockKind.LEASE, id="a Lease before a folder"),
        pytest.param("--nnodes=2 --lease=n/l --arbiter=majority", LockKind.MAJORITY, id="what is asked for"),
        pytest.param("--nnodes=2 --arbiter=none", LockKind.NONE, id="nobody"),
        pytest.param("", LockKind.NONE, id="who is alone has nobody to ask"),
        pytest.param("--standalone --round-dir=/s", LockKind.FILE, id="alone, but what is spent is remembered"),
    ],
)
def test_who_decides(line, kind):
    assert settings(line).rendezvous.arbiter is kind


@pytest.mark.parametrize(
    ("line", "environ", "order"),
    [
        pytest.param("--node-rank=3", {"NODE_RANK": "1"}, 3, id="given"),
        pytest.param("", {"PET_NODE_RANK": "2", "NODE_RANK": "1"}, 2, id="by the operator"),
        pytest.param("", {"NODE_RANK": "1", "WORKER_RANK": "5"}, 1, id="DLRover's"),
        pytest.param("", {"WORKER_RANK": "5"}, 5, id="DLRover's older one"),
        pytest.param("", {"JOB_COMPLETION_INDEX": "4"}, 4, id="an indexed Job"),
        pytest.param("", {**MASTER, "WORLD_SIZE": "4", "RANK": "3"}, 3, id="a PyTorchJob of old"),
        pytest.param("", {**MASTER, "WORLD_SIZE": "4", "RANK": "3", "LOCAL_RANK": "0"}, None, id="a training process"),
        pytest.param("", {"POD_NAME": "a-worker-7"}, 7, id="its pod's number"),
        pytest.param("", {"POD_NAME": "a-worker-77777"}, None, id="a number that no worker has"),
        pytest.param("", {"POD_NAME": "a"}, None, id="nobody knows"),
    ],
)
def test_which_worker_it_is(line, environ, order):
    assert settings(line, environ).place.order == order


@pytest.mark.parametrize(
    ("line", "is_host"),
    [
        pytest.param("--nnodes=2 --node-rank=0", True, id="static: the first"),
        pytest.param("--nnodes=2 --node-rank=1", False, id="static: not the second"),
        pytest.param("--nnodes=2", None, id="static: who finds the address its own"),
        pytest.param("--nnodes=1:2 --node-rank=1", None, id="dynamic: the number says nothing"),
        pytest.param("--nnodes=2 --node-rank=1 --rdzv-conf=is_host=1", True, id="unless it is said"),
        pytest.param("--node-rank=1", None, id="one worker"),
    ],
)
def test_who_is_the_first_coordinator(line, is_host):
    assert settings(line).rendezvous.is_host is is_host


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        pytest.param({"POD_NAME": "w-1", "POD_IP": "10.0.0.9", "NODE_IP": "h"}, ("w-1", "h", "10.0.0.9"), id="DLRover"),
        pytest.param({"NODE_NAME": "gpu-1", "NODE_IP": "10.1.1.1"}, ("", "gpu-1", ""), id="the node's name is better"),
        pytest.param({}, ("", "", ""), id="the shell will find out"),
    ],
)
def test_where_it_stands(environ, place):
    found = settings("", environ).place
    assert (found.name, found.host, found.address) == place

"""Settings that command lines mean: those of the guide, of the PyTorch page, and of a job's pods' environment."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.cli.help import explain, flatten_settings
from turnout.launcher.cli.to_settings import read
from turnout.launcher.model import Exit
from turnout.launcher.settings import Command, Devices, NoteSubject, ScriptKind, Settings, StartNote


def settings(line, environ=None):
    found = read(line.split() if isinstance(line, str) else line, environ or {})
    assert isinstance(found, Settings), found.text
    return found


def refused(line, environ=None):
    answer = read(line.split() if isinstance(line, str) else line, environ or {})
    assert not isinstance(answer, Settings)
    assert answer.exit is Exit.USAGE
    return answer.text.removeprefix("turnout-run: ")


def messages(found, *names):
    fields = dict(flatten_settings(found))
    return {name: fields[name] for name in names}


POD = {"POD_NAME": "job-edljob-worker-1", "NODE_NUM": "4", "NODE_RANK": "1", "JOB_UID": "u-1", "POD_IP": "10.0.0.1"}
MET = {
    "rendezvous.host": "job-edljob-worker-0",
    "rendezvous.port": "29400",
    "rendezvous.run": "u-1",
    "place.order": "1",
}


@pytest.mark.contract("DL-40", "DL-42", "PE-11")
@pytest.mark.parametrize(
    ("line", "environ", "means"),
    [
        pytest.param(
            "--standalone --nproc_per_node=2 train.py",
            {},
            {
                "rendezvous.standalone": "True",
                "processes": "2",
                "elastic_spec.max_nodes": "1",
                "rendezvous.host": "127.0.0.1",
            },
            id="alone in a container, DL-36",
        ),
        pytest.param(
            "--nnodes=4 --nproc_per_node=8 --max_restarts=3 train.py --lr 0.1",
            POD,
            {
                "elastic_spec.min_nodes": "4",
                "elastic_spec.max_nodes": "4",
                "elastic_spec.max_restarts": "3",
                "rendezvous.is_host": "False",
                **MET,
            },
            id="a fixed number, no address given, DL-38",
        ),
        pytest.param(
            "--nnode=4 --max_restarts=1 train.py",
            POD,
            {"elastic_spec.min_nodes": "4", "elastic_spec.max_nodes": "4", "elastic_spec.max_restarts": "1", **MET},
            id="the guide's --nnode, DL-40",
        ),
        pytest.param(
            "--nnodes=2:4 --node_unit=2 --max-restarts=3 train.py",
            POD,
            {
                "elastic_spec.min_nodes": "2",
                "elastic_spec.max_nodes": "4",
                "elastic_spec.node_unit": "2",
                "rendezvous.worker_count": "4",
                **MET,
            },
            id="elastic, in pairs, DL-87",
        ),
        pytest.param(
            "--auto-config train.py",
            POD,
            {"elastic_spec.min_nodes": "4", "elastic_spec.max_nodes": "4", "processes": "auto", **MET},
            id="as many as the job has, a process per device",
        ),
    ],
)
def test_the_command_lines_of_the_guide(line, environ, means):  # DL-42
    assert messages(settings(line, environ), *means) == means


@pytest.mark.contract("DL-32", "DL-33", "DL-100")
@pytest.mark.parametrize(
    ("line", "means"),
    [
        pytest.param("--nnodes=4 --network-check --max_restarts=1 t.py", {"checks.network": "True"}, id="DL-30, DL-84"),
        pytest.param("--precheck=1 t.py", {"checks.network": "True"}, id="as upstream writes it now"),
        pytest.param("--precheck=2 t.py", {"checks.performance": "True"}, id="with the speed of all together"),
        pytest.param(
            "--network_check --exclude-straggler t.py",
            {"checks.exclude_straggler": "True"},
            id="with stragglers, DL-31",
        ),
        pytest.param(
            [
                *("--network-check", "--switchbox-check", "--box-pairs", "0:1 2:3 4:5"),
                *("--min-bandwidth", "9000", "--min-channels", "3", "t.py"),
            ],
            {
                "checks.switchbox": "True",
                "checks.box_pairs": "((0, 1), (2, 3), (4, 5))",
                "checks.min_bandwidth_mb_per_s": "9000",
                "checks.min_channels": "3",
            },
            id="the combined command of the guide, DL-32, DL-100",
        ),
        pytest.param("t.py", {"checks.switchbox": "False", "checks.network": "False"}, id="off, DL-32"),
    ],
)
def test_the_health_checks_of_the_guide(line, means):
    assert messages(settings(line), *means) == means


@pytest.mark.contract("DL-31", "DL-98")
@pytest.mark.parametrize(
    ("line", "culprit"),
    [
        pytest.param("--network-check --probe-stage-s 1e6 t.py", "a stage of a probe takes", id="a stage of days"),
        pytest.param("--exclude-straggler train.py", "--exclude-straggler needs --network-check", id="DL-31"),
        pytest.param("--switchbox-check train.py", "--switchbox-check needs --network-check", id="DL-98"),
        pytest.param(
            "--node-verdicts train.py", "--node-verdicts needs --network-check", id="verdicts without a check"
        ),
        pytest.param("--comm-perf-test train.py", "--comm-perf-test needs --network-check", id="speed without a check"),
        pytest.param("--box-pairs 0:1,2:4 train.py", "--box-pairs is '0:1,2:4'", id="pairs with a comma, DL-33"),
        pytest.param(
            "--network-check --switchbox-check --box-pairs 0:1 t.py", "--min-channels 2 of 1", id="more than there are"
        ),
    ],
)
def test_a_health_check_that_cannot_be_is_refused(line, culprit):
    assert refused(line).startswith(culprit)


@pytest.mark.parametrize(
    ("line", "means"),
    [
        pytest.param(
            "--standalone --nnodes=1 --nproc_per_node=4 train.py --arg",
            {"rendezvous.standalone": "True", "processes": "4", "elastic_spec.max_nodes": "1", "rendezvous.port": "0"},
            id="standalone, PE-10",
        ),
        pytest.param(
            "--nnodes=2 --nproc_per_node=4 --max_restarts=3 --rdzv_id=7 --rdzv_backend=c10d --rdzv_endpoint=a:294 t.py",
            {
                "elastic_spec.min_nodes": "2",
                "elastic_spec.max_nodes": "2",
                "elastic_spec.max_restarts": "3",
                "rendezvous.run": "7",
                "rendezvous.backend": "c10d",
                "rendezvous.host": "a",
                "rendezvous.port": "294",
            },
            id="fault tolerant, fixed size, PE-11",
        ),
        pytest.param(
            "--nnodes=1:4 --nproc_per_node=4 --max_restarts=3 --rdzv_id=7 --rdzv_backend=c10d --rdzv_endpoint=a t.py",
            {
                "elastic_spec.min_nodes": "1",
                "elastic_spec.max_nodes": "4",
                "rendezvous.host": "a",
                "rendezvous.port": "29400",
            },
            id="elastic, PE-12, the port of PE-13",
        ),
    ],
)
def test_the_command_lines_of_the_pytorch_page(line, means):
    found = settings(line)
    assert messages(found, *means) == means
    assert found.notes == ()


@pytest.mark.contract("PE-30", "PE-31", "PE-32", "PE-35", "PE-36", "PE-37", "PE-38", "PE-39")
def test_the_environment_of_an_elastic_pytorchjob_is_enough():  # PE-30..39
    environ = {
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ID": "elastic",
        "PET_RDZV_CONF": "join_timeout=90,last_call_timeout=5",
        "PET_RDZV_ENDPOINT": "elastic-worker-0:29400",
        "PET_MAX_RESTARTS": "100",
        "PET_MONITOR_INTERVAL": "3",
        "PET_START_METHOD": "fork",
        "PET_N_PROC_PER_NODE": "4",
        "PET_NNODES": "1:3",
        "PYTHONUNBUFFERED": "0",
    }
    found = settings("train.py", environ)
    assert messages(
        found, "elastic_spec.min_nodes", "elastic_spec.max_nodes", "processes", "rendezvous.host", "rendezvous.run"
    ) == {
        "elastic_spec.min_nodes": "1",
        "elastic_spec.max_nodes": "3",
        "processes": "4",
        "rendezvous.host": "elastic-worker-0",
        "rendezvous.run": "elastic",
    }
    assert (found.elastic_spec.max_restarts, found.elastic_spec.join_timeout_s, found.elastic_spec.last_call_s) == (
        100,
        90.0,
        5.0,
    )
    assert [note.about for note in found.notes] == ["PET_MONITOR_INTERVAL"]


@pytest.mark.contract("PE-35")
def test_max_restarts_are_0_where_no_policy_says_them():  # PE-35
    assert settings("t.py", {}).elastic_spec.max_restarts == 0
    assert settings("t.py", {"PET_MAX_RESTARTS": "3"}).elastic_spec.max_restarts == 3
    assert refused("t.py", {"PET_MAX_RESTARTS": "-1"}).startswith("PET_MAX_RESTARTS is '-1'")


@pytest.mark.contract("PE-36")
@pytest.mark.parametrize("seconds", ["0.1", "3", "30"])
def test_the_interval_of_a_monitor_is_taken_and_told_to_do_nothing(seconds):  # PE-36
    found = settings("t.py", {"PET_MONITOR_INTERVAL": seconds})
    assert [(note.about, note.word) for note in found.notes] == [("PET_MONITOR_INTERVAL", NoteSubject.NO_EFFECT)]


def test_the_interval_of_a_monitor_is_a_number_of_seconds():  # PE-36
    assert refused("t.py", {"PET_MONITOR_INTERVAL": "soon"}).startswith("PET_MONITOR_INTERVAL is 'soon'")


@pytest.mark.contract("PE-37")
@pytest.mark.parametrize(
    ("method", "forks"), [("fork", True), ("forkserver", True), ("spawn", False)], ids=["fork", "forkserver", "spawn"]
)
def test_each_start_method_of_a_policy(method, forks):  # PE-37
    found = settings("t.py", {"PET_START_METHOD": method})
    assert (found.start.fork, found.notes) == (forks, ())


@pytest.mark.contract("PE-37")
@pytest.mark.parametrize("method", ["thread", "Fork", "1"])
def test_no_other_start_method_is_taken(method):  # PE-37
    assert refused("t.py", {"PET_START_METHOD": method}).startswith(f"PET_START_METHOD is {method!r}: one of")


@pytest.mark.contract("PE-38")
@pytest.mark.parametrize(
    ("environ", "processes"),
    [
        pytest.param({"PET_N_PROC_PER_NODE": "4"}, 4, id="as the page spells it"),
        pytest.param({"PET_NPROC_PER_NODE": "4"}, 4, id="as torchrun reads it"),
        pytest.param({"PET_NPROC_PER_NODE": "4", "PET_N_PROC_PER_NODE": "4"}, 4, id="both, with one value"),
        pytest.param({"PET_NPROC_PER_NODE": "2", "PET_N_PROC_PER_NODE": "4"}, 2, id="torchrun's is the stronger"),
        pytest.param({"PET_NPROC_PER_NODE": "auto"}, Devices.AUTO, id="counted where it runs"),
    ],
)
def test_how_many_processes_a_policy_says(environ, processes):  # PE-38, SD-12
    found = settings("t.py", environ)
    assert (found.processes, found.notes) == (processes, ())


@pytest.mark.contract("PE-39")
@pytest.mark.parametrize(
    "environ",
    [{"PET_NNODES": "1:3"}, {"PET_NODES": "1:3"}, {"PET_NNODES": "1:3", "PET_NODES": "1:3"}],
    ids=["as torchrun reads it", "as the pod of the page has it", "both"],
)
def test_the_bounds_of_an_elastic_policy(environ):  # PE-39, SD-12
    found = settings("t.py", {**environ, "PET_RDZV_BACKEND": "c10d", "PET_RDZV_ENDPOINT": "a-worker-0:29400"})
    assert (found.elastic_spec.min_nodes, found.elastic_spec.max_nodes, found.notes) == (1, 3, ())


@pytest.mark.parametrize(
    ("line", "environ", "number"),
    [
        pytest.param("t.py", {"PET_NODES": "2"}, 2, id="the page's PET_NODES"),
        pytest.param("t.py", {"PET_NNODES": "3", "PET_NODES": "2"}, 3, id="torchrun's spelling is stronger"),
        pytest.param("--nnodes=4 t.py", {"PET_NNODES": "3"}, 4, id="the command line is strongest"),
        pytest.param("--nnodes=4 --nnodes=5 t.py", {}, 5, id="the last one counts"),
        pytest.param("t.py", {"PET_NNODES": " "}, 1, id="an empty one is none"),
        pytest.param("--auto-config --nnodes=2 t.py", {"NODE_NUM": "8"}, 2, id="what is given is not made up"),
        pytest.param("--auto-config t.py", {}, 1, id="nobody says how many there are"),
    ],
)
def test_who_says_how_many_workers_there_are(line, environ, number):
    assert settings(line, environ).elastic_spec.max_nodes == number


@pytest.mark.parametrize(
    ("text", "means"),
    [
        pytest.param("4", 4, id="a number"),
        *(pytest.param(each.value, each, id=f"counted where it runs: {each.value}") for each in Devices),
    ],
)
def test_how_many_processes(text, means):
    assert settings(["--nproc-per-node", text, "t.py"]).processes == means


@pytest.mark.contract("PE-34")
@pytest.mark.parametrize("environ", [{"PET_STANDALONE": ""}, {"PET_STANDALONE": "1"}], ids=["empty", "1"])
def test_a_pytorchjob_that_stands_alone(environ):  # PE-34, SD-13
    found = settings("t.py", {**environ, "PET_NNODES": "1:3", "PET_RDZV_ENDPOINT": "a-worker-0:29400"})
    assert found.rendezvous.standalone
    assert (found.elastic_spec.min_nodes, found.elastic_spec.max_nodes, found.rendezvous.port) == (1, 1, 0)
    assert {note.about for note in found.notes} == {"PET_NNODES", "PET_RDZV_ENDPOINT"}


@pytest.mark.parametrize(
    ("line", "command"),
    [
        pytest.param(["t.py"], Command("t.py"), id="a script"),
        pytest.param(["t.py", "--tee", "3", "-m"], Command("t.py", ("--tee", "3", "-m")), id="its options are its own"),
        pytest.param(["t.py", "--", "-x"], Command("t.py", ("--", "-x")), id="its -- too"),
        pytest.param(["--", "t.py", "--", "x"], Command("t.py", ("--", "x")), id="after a -- of ours"),
        pytest.param(["--", "-t.py"], Command("-t.py"), id="a script with a dash"),
        pytest.param(
            ["-m", "pkg.train", "--help"], Command("pkg.train", ("--help",), ScriptKind.MODULE), id="a module"
        ),
        pytest.param(["-mt3", "pkg"], Command("pkg", (), ScriptKind.MODULE), id="short ones together"),
        pytest.param(
            ["--no-python", "bash", "-c", "a b"], Command("bash", ("-c", "a b"), ScriptKind.PROGRAM), id="a program"
        ),
        pytest.param(["--run-path", "/a.py"], Command("/a.py", (), ScriptKind.RUN_PATH), id="by runpy"),
        pytest.param(
            ["--run_path", "--no_python", "/a"], Command("/a", (), ScriptKind.RUN_PATH), id="runpy is stronger"
        ),
        pytest.param(["-", "x"], Command("-", ("x",)), id="standard input"),
        pytest.param(["t.py", "", " "], Command("t.py", ("", " ")), id="empty arguments"),
    ],
)
def test_the_script_and_its_arguments_are_untouched(line, command):  # DL-41
    assert settings(line).command == command


@given(st.lists(st.text()), st.sampled_from([[], ["--nnodes=2"], ["--tee", "3", "--standalone"], ["--"]]))
def test_whatever_follows_the_script_belongs_to_it(arguments, options):
    assert settings([*options, "train.py", *arguments]).command == Command("train.py", tuple(arguments))


@given(st.lists(st.text(min_size=1, max_size=12).map(lambda text: "--" + text), max_size=4))
def test_any_line_gets_settings_or_a_reason(words):
    answer = read([*words, "train.py"], {})
    assert isinstance(answer, Settings) or answer.text


@pytest.mark.parametrize(
    ("line", "environ", "reason"),
    [
        pytest.param("", {}, "nothing to run", id="no script"),
        pytest.param("--nnod=2 t.py", {}, "there is no option --nnod, the nearest is --nnode", id="a shortened name"),
        pytest.param("--max-restart 2 t.py", {}, "there is no option --max-restart, the nearest", id="an s less"),
        pytest.param("-x t.py", {}, "there is no option -x", id="an unknown letter"),
        pytest.param("--nnodes", {}, "--nnodes needs a value", id="no value"),
        pytest.param("--tee --standalone t.py", {}, "--tee needs a value", id="an option where a value should be"),
        pytest.param("--max-restarts=-1 t.py", {}, "--max-restarts is '-1': a whole number", id="less than none"),
        pytest.param("t.py", {"PET_MAX_RESTARTS": "x"}, "PET_MAX_RESTARTS is 'x'", id="a variable is named"),
        pytest.param("t.py", {"PET_STANDALONE": "perhaps"}, "PET_STANDALONE is 'perhaps': 1 or 0", id="half a flag"),
        pytest.param("t.py", {"NODE_RANK": "first"}, "NODE_RANK is 'first'", id="another's variable is named"),
        pytest.param("--auto-config t.py", {"NODE_NUM": "0"}, "NODE_NUM is '0'", id="a job of no workers"),
        pytest.param("--nnodes=3:2 t.py", {}, "--nnodes is '3:2': N or MIN:MAX", id="more than the most"),
        pytest.param("--nnodes=99999 t.py", {}, "min and max are 99999:99999", id="more than any job has"),
        pytest.param("--node-unit=3 --nnodes=2 t.py", {}, "the unit is 3", id="a unit that never fits"),
        pytest.param("--nproc-per-node=0 t.py", {}, "--nproc-per-node is '0'", id="no process"),
        pytest.param("--nproc-per-node=2000 t.py", {}, "2000 processes: 1 to 1024", id="too many processes"),
        pytest.param("--standalone --nnodes=2 t.py", {}, "--standalone is for one worker, not for 2:2", id="two alone"),
        pytest.param("-m --no-python t.py", {}, "--module and --no-python exclude", id="a module without Python"),
        pytest.param("--heartbeat-s 5 --silence-s 4 t.py", {}, "a heartbeat each 5 s, given up after 4", id="given up"),
        pytest.param("--signals-to-handle=SIGKILL t.py", {}, "--signals-to-handle is 'SIGKILL'", id="SIGKILL"),
        pytest.param("--rdzv-backend=redis t.py", {}, "--rdzv-backend is 'redis': one of static", id="a back-end"),
        pytest.param("--rdzv-conf=a=1 t.py", {}, "--rdzv-conf has no key 'a'; it has ca_cert", id="an unknown key"),
        pytest.param("--rdzv-conf=rank t.py", {}, "--rdzv-conf: rank needs a value", id="a key without a value"),
        pytest.param("t.py", {"PET_RDZV_CONF": "is_host=x"}, "PET_RDZV_CONF: is_host is 'x'", id="a key's value"),
        pytest.param(
            "--rdzv-conf=lastcall_timeout=1,last_call_timeout=2 t.py", {}, "--rdzv-conf says last_call_timeout twice",
            id="two names, two times",
        ),
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_obeyed_names_the_culprit(line, environ, reason):
    assert refused(line, environ).startswith(reason)


@pytest.mark.parametrize(
    ("line", "times"),
    [
        pytest.param("t.py", (30.0, 600.0, 2.0, 10.0), id="as usual"),
        pytest.param("--rdzv-conf lastcall_timeout=60,pend_timeout=9, t.py", (60.0, 600.0, 2.0, 10.0), id="DLRover's"),
        pytest.param("--rdzv-conf=timeout=5,join_timeout=5 t.py", (30.0, 5.0, 2.0, 10.0), id="etcd's, said twice"),
        pytest.param(
            "--last-call-s=1 --rdzv-conf=last_call_timeout=9 t.py", (1.0, 600.0, 2.0, 10.0), id="our own wins"
        ),
        pytest.param("--rdzv-conf=keep_alive_interval=5 t.py", (30.0, 600.0, 5.0, 25.0), id="rarer heartbeats"),
        pytest.param(
            "--rdzv-conf=keep_alive_interval=5,keep_alive_max_attempt=3 t.py",
            (30.0, 600.0, 5.0, 15.0),
            id="torch's own",
        ),
        pytest.param(
            "--heartbeat-s=1 --silence-s=3 --rdzv-conf=keep_alive_interval=5,keep_alive_max_attempt=9 t.py",
            (30.0, 600.0, 1.0, 3.0),
            id="our own win again",
        ),
    ],
)
def test_the_times_of_a_rendezvous(line, times):
    found = settings(line)
    terms, timing = found.elastic_spec, found.timing
    assert (terms.last_call_s, terms.join_timeout_s, timing.heartbeat_s, timing.silence_s) == times


@pytest.mark.parametrize(
    ("line", "warned"),
    [
        pytest.param("--nnodes=1:2 --strategy=ddp t.py", False, id="ddp is promised"),
        pytest.param("--nnodes=2 --strategy=megatron t.py", False, id="a fixed job is never resized"),
        pytest.param("--nnodes=1:2 t.py", False, id="nobody said how it trains"),
        pytest.param("--nnodes=1:2 --strategy=fsdp t.py", True, id="fsdp"),
        pytest.param("--nnodes=1:2 --strategy=megatron t.py", True, id="megatron"),
    ],
)
def test_who_is_warned_of_resizing(line, warned):  # DL-91
    found = [
        note for note in settings(["--rdzv-backend=c10d", *line.split()]).notes if note.word is NoteSubject.RESIZING
    ]
    assert [note.about for note in found] == (["--strategy"] if warned else [])


def test_a_variable_that_looks_like_an_option_and_is_none_is_told():
    (note,) = settings("t.py", {"PET_NNODE": "4"}).notes
    assert note == StartNote("PET_NNODE", NoteSubject.NO_EFFECT, "no option has this name")


def test_python_may_be_another_one():
    assert settings("t.py", {"PYTHON_EXEC": "/opt/python"}).command.python == "/opt/python"


def test_explain_needs_no_script_and_tells_each_setting_and_its_source():
    found = settings("--explain --tee 3", {"PET_NNODES": "1:4"})
    lines = explain(found).splitlines()
    assert lines[0] == "given: PET_NNODES=1:4 --explain --tee=3"
    assert "elastic_spec.max_nodes = 4" in lines
    assert lines[-1].startswith("note: PET_NNODES: no address: nothing says where 4 workers meet")
    assert lines[-2] == ("note: --nnodes: dynamic rendezvous: static cannot be resized, and 1:4 workers are asked for")

"""When a fork would not be as good as a fresh process: then it is a fresh one, and why is told."""

import asyncio
import os

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.wait import until_async
from tests.launcher.workers.testbed import PYTHON, WorkerTestbed, running
from turnout.launcher.coordinator_messages import Formed
from turnout.launcher.errors import BadElasticSpec
from turnout.launcher.model import RestartBudget
from turnout.launcher.workers.worker_spec import (
    CommandKind,
    Exited,
    JobVariables,
    SpawnSpec,
    arguments_of_rank,
    command,
    common_environment,
    is_read_at_import,
    process_environment,
    why_not_forkable,
)

ENV = {"OMP_NUM_THREADS": "1", "HOME": "/h"}


def order(*argv, env=None, **more):
    return SpawnSpec(0, argv or ("train.py",), ENV | (env or {}), **more)


@pytest.mark.parametrize(
    ("order", "why"),
    [
        pytest.param(order(), "", id="a script"),
        pytest.param(order("pkg", how=CommandKind.MODULE), "", id="a module"),
        pytest.param(order(python="/py"), "", id="the agent's interpreter by name"),
        pytest.param(order(env={"RANK": "1", "MASTER_PORT": "2", "HOME": "/x"}), "", id="another rank"),
        pytest.param(order(env={"TORCHELASTIC_RUN_ID": "2", "TORCH_NCCL_BLOCKING_WAIT": "1"}), "", id="read later"),
        pytest.param(order("sh", how=CommandKind.BARE), "--no-python", id="a program"),
        pytest.param(order(how=CommandKind.RUN_PATH), "--run-path", id="run-path"),
        pytest.param(order(python="/other"), "another interpreter: /other", id="PYTHON_EXEC"),
        pytest.param(
            order(env={"OMP_NUM_THREADS": "2", "CUDA_VISIBLE_DEVICES": "1", "PYTHONPATH": "/x", "X": "1"}),
            "read at import and different: CUDA_VISIBLE_DEVICES, OMP_NUM_THREADS, PYTHONPATH",
            id="environment that was read already",
        ),
        pytest.param(
            SpawnSpec(0, ("train.py",), {"HOME": "/h"}),
            "read at import and different: OMP_NUM_THREADS",
            id="environment that is no more",
        ),
        pytest.param(order(cpus=(1,)), "", id="bound to a CPU with its threads counted"),
        pytest.param(
            SpawnSpec(0, ("train.py",), {}, cpus=(1,)),
            "bound to CPUs without OMP_NUM_THREADS: libraries count their threads at import",
            id="bound to a CPU, threads uncounted",
        ),
    ],
)
def test_a_fork_will_do_or_why_not(order, why):
    assert why_not_forkable(order, ENV, "/py") == why


@pytest.mark.parametrize(
    "name",
    [
        *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD"),
        *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONUNBUFFERED"),
        *("TORCH_LOGS", "TORCH_DISTRIBUTED_DEBUG", "LC_ALL", "MALLOC_ARENA_MAX"),
    ],
)
def test_what_libraries_read_at_import_is_known(name):
    assert is_read_at_import(name)


FORMED = Formed(
    round=7,
    base=6,
    group_rank=1,
    group_size=2,
    first_rank=2,
    ranks=5,
    master_address="10.0.0.1",
    master_port=29500,
    reason="",
    budget=RestartBudget(used=1, total=4),
)


def env_of(local_rank, shared=None, **job):
    return process_environment(shared or {}, JobVariables("run", **job), FORMED, 3, local_rank)


@pytest.mark.contract("PE-05")
def test_a_process_is_told_its_place_as_torchelastic_tells_it():
    assert env_of(1, common_environment({"HOME": "/h"}, 3), role="trainer", max_restarts=9) == {
        "HOME": "/h",
        "OMP_NUM_THREADS": "1",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "GROUP_RANK": "1",
        "LOCAL_WORLD_SIZE": "3",
        "WORLD_SIZE": "5",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "5",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "NODE_RANK": "1",
        "NODE_NUM": "2",
        "WORKER_RANK": "1",
        "WORKER_NUM": "2",
        "TORCHELASTIC_RESTART_COUNT": "4",
        "TORCHELASTIC_MAX_RESTARTS": "9",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "",
        "TURNOUT_ROUND": "7",
        "TURNOUT_RESTORE_STEP": "-1",
        "TURNOUT_RESTORE_PARTS": "",
    }


@pytest.mark.parametrize(
    ("shared", "most_workers", "number"),
    [
        pytest.param({}, 2, "2", id="as many as there are"),
        pytest.param({}, 8, "8", id="the most of an elastic job"),
        pytest.param({"WORKER_NUM": "4"}, 8, "4", id="what the pod says"),
        pytest.param({"WORKER_NUM": "1"}, 8, "8", id="not what would be less than one step of each"),
        pytest.param({"WORKER_NUM": "many"}, 8, "8", id="nor what is no number"),
        pytest.param({"WORKER_NUM": ""}, 8, "8", id="nor nothing"),
    ],
)
def test_a_script_of_dlrover_reads_how_many_workers_its_batch_is_made_for(shared, most_workers, number):
    assert env_of(0, shared, most_workers=most_workers)["WORKER_NUM"] == number


@pytest.mark.contract("PE-43")
@pytest.mark.parametrize("value", ["0", "1", ""])
def test_what_the_pod_says_of_buffers_is_what_its_processes_have(value):  # PE-43
    """The pod's maker sets it, a user or a controller; the launcher leaves it as it is."""
    assert env_of(0, common_environment({"PYTHONUNBUFFERED": value}, 3))["PYTHONUNBUFFERED"] == value


def test_words_of_dlrover_that_the_pod_has_stay():
    words = {"NODE_RANK": "5", "NODE_NUM": "7", "WORKER_RANK": "6"}
    env = env_of(0, words)
    assert {name: env[name] for name in words} == words


@given(
    maximum=st.integers(1, 64),
    missing=st.integers(0, 63),
    processes=st.integers(1, 8),
    given=st.text("0123456789x", max_size=4),
)
def test_every_rank_accumulates_at_least_one_step_as_dlrover_counts(maximum, missing, processes, given):
    """ElasticTrainer divides by the steps that it has counted so, in every world of the job."""
    workers = max(maximum - missing, 1)
    ranks = workers * processes
    for group_rank in (0, workers - 1):
        formed = msgspec.structs.replace(
            FORMED, group_rank=group_rank, group_size=workers, first_rank=group_rank * processes, ranks=ranks
        )
        env = process_environment(
            {"WORKER_NUM": given}, JobVariables("run", most_workers=maximum), formed, processes, processes - 1
        )
        process_count = int(env["WORKER_NUM"]) * int(env["LOCAL_WORLD_SIZE"])
        assert (
            process_count // int(env["WORLD_SIZE"]) + (int(env["RANK"]) < process_count % int(env["WORLD_SIZE"])) >= 1
        )


@pytest.mark.parametrize(
    ("own", "processes", "threads"),
    [
        pytest.param({}, 1, None, id="one process has all cores"),
        pytest.param({}, 2, "1", id="several share them"),
        pytest.param({"OMP_NUM_THREADS": "6"}, 2, "6", id="the user has said it"),
    ],
)
def test_threads_are_counted_for_several_processes(own, processes, threads):
    assert common_environment(own, processes).get("OMP_NUM_THREADS") == threads


@pytest.mark.parametrize(
    ("shared", "local_rank", "name", "device"),
    [
        pytest.param({}, 2, "CUDA_VISIBLE_DEVICES", "2", id="no choice"),
        pytest.param(
            {"CUDA_VISIBLE_DEVICES": "4, 6,7"}, 1, "CUDA_VISIBLE_DEVICES", "6", id="of those that were chosen"
        ),
        pytest.param(
            {"HIP_VISIBLE_DEVICES": "8,9,3", "CUDA_VISIBLE_DEVICES": "0"},
            2,
            "HIP_VISIBLE_DEVICES",
            "3",
            id="ROCm first",
        ),
    ],
)
def test_a_virtual_local_rank_is_0_of_one_device(shared, local_rank, name, device):
    env = env_of(local_rank, shared, virtual_local_rank=True)
    assert (env["LOCAL_RANK"], env[name]) == ("0", device)


def test_a_virtual_local_rank_without_a_device_is_refused():
    with pytest.raises(BadElasticSpec, match="process 2 has no device: CUDA_VISIBLE_DEVICES is '0,1'"):
        env_of(2, {"CUDA_VISIBLE_DEVICES": "0,1"}, virtual_local_rank=True)


@given(st.text(max_size=20), st.integers(0, 99))
def test_only_local_rank_is_replaced_in_arguments(text, rank):
    word = text.replace("$", "")
    assert arguments_of_rank((word, f"{word}${{local_rank}}", "$HOME ${x} $ $$"), rank) == (
        word,
        f"{word}{rank}",
        "$HOME ${x} $ $",
    )


@pytest.mark.parametrize(
    ("order", "words"),
    [
        pytest.param(order("a.py", "-x"), ("/py", "-u", "a.py", "-x"), id="a script"),
        pytest.param(order("a.py", python="/other"), ("/other", "-u", "a.py"), id="of another interpreter"),
        pytest.param(order("pkg", "-x", how=CommandKind.MODULE), ("/py", "-u", "-m", "pkg", "-x"), id="a module"),
        pytest.param(order("sh", "-c", "x", how=CommandKind.BARE), ("sh", "-c", "x"), id="a program"),
    ],
)
def test_what_is_executed(order, words):
    assert command(order, "/py") == words


@pytest.mark.parametrize(
    ("exited", "text"),
    [
        (Exited(1, 7, 3), "process 1 (pid 7): exit code 3"),
        (Exited(1, 7, -9, "SIGKILL"), "process 1 (pid 7): ended by SIGKILL"),
        (Exited(1, 7, 1, error="ValueError: x"), "process 1 (pid 7): exit code 1: ValueError: x"),
        (Exited(1, 7, -9, "SIGKILL", stuck=True), "process 1 (pid 7): does not go"),
    ],
)
def test_an_end_is_told_in_words(exited, text):
    assert str(exited) == text


THREAD = "import threading\nthreading.Thread(target=threading.Event().wait, name='helper', daemon=True).start()"
CUDA = """
    import os, sys, types
    torch = sys.modules["torch"] = types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_initialized=lambda: {used}, _is_in_bad_fork=lambda: {bad})
"""


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("X = 1", [], id="nothing is wrong"),
        pytest.param(THREAD, ["2 threads in the parent: python"], id="a thread"),
        pytest.param(CUDA.format(used=True, bad=False), ["CUDA is initialised in the parent"], id="CUDA"),
        pytest.param(
            CUDA.format(used=False, bad=True), ["CUDA was used in the parent: a fork of it could not"], id="CUDA, asked"
        ),
    ],
)
async def test_a_parent_that_must_not_be_forked_says_why(tmp_path, text, why):
    testbed = WorkerTestbed(tmp_path, preload=("ahead",), env=os.environ | {"PYTHONPATH": str(tmp_path)})
    testbed.file("ahead.py", text)
    (exited,) = await testbed.run(testbed.program("import sys; print('ahead' in sys.modules)"))
    assert (exited.code, testbed.why, testbed.out()) == (0, why, f"{not why}\n")
    await testbed.processes.close()


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("text", "failed"),
    [
        pytest.param("1 / 0", "ZeroDivisionError: division by zero", id="that raises"),
        pytest.param("raise SystemExit(3)", "SystemExit: 3", id="that ends the interpreter"),
    ],
)
async def test_a_module_that_cannot_be_imported_ahead_is_told_and_hurts_nobody(tmp_path, text, failed):
    testbed = WorkerTestbed(tmp_path, preload=("ahead", "json"), env=os.environ | {"PYTHONPATH": str(tmp_path)})
    testbed.file("ahead.py", text)
    await testbed.start(testbed.program("import sys; print('json' in sys.modules)"))
    assert testbed.entries("preload_failed") == [{"module": "ahead", "why": failed}]
    await testbed.ended()
    assert (testbed.why, testbed.out()) == ([], "True\n")
    await testbed.processes.close()


@pytest.mark.asyncio
async def test_a_parent_that_dies_or_dallies_while_it_imports_is_done_without(tmp_path):
    testbed = WorkerTestbed(tmp_path, preload=("ahead",), env=os.environ | {"PYTHONPATH": str(tmp_path)})
    testbed.file("ahead.py", "import os; os._exit(3)")
    assert [each.code for each in await testbed.run(testbed.program("print(1)"))] == [0]
    assert testbed.entries("parent_lost")[0]["code"] == 3
    testbed.file("ahead.py", "import signal; signal.pause()")
    slow = WorkerTestbed(tmp_path, preload=("ahead",), env=testbed.env, patience_s=0.3)
    assert [each.code for each in await slow.run(slow.program("print(1)"))] == [0]
    assert slow.entries("parent_failed") == [{"why": "it has not imported ahead in 0.3 s"}]
    assert slow.why == ["the forkserver is not ready"]
    for each in (testbed, slow):
        await each.processes.close()


@pytest.mark.asyncio
async def test_for_how_long_a_start_would_wait_for_imports(tmp_path):
    """For what is left of our patience, and not at all once they are done, have failed, or are not needed."""
    testbed = WorkerTestbed(
        tmp_path, preload=("ahead",), env=os.environ | {"PYTHONPATH": str(tmp_path)}, patience_s=60.0
    )
    os.mkfifo(tmp_path / "fifo")
    testbed.file("ahead.py", f"open({str(tmp_path / 'fifo')!r}).read()")
    await testbed.processes.warm_parent.start()
    first_s = testbed.processes.warm_parent.importing_s()
    assert 0 < testbed.processes.warm_parent.importing_s() < first_s <= 60.0
    await asyncio.to_thread((tmp_path / "fifo").write_text, "that is all")
    await until_async(lambda: testbed.processes.warm_parent.importing_s() == 0.0)
    testbed.file("dies.py", "import os; os._exit(3)")
    testbed.file("dallies.py", "import signal; signal.pause()")
    dies = WorkerTestbed(tmp_path, preload=("dies",), env=testbed.env)
    dallies = WorkerTestbed(tmp_path, preload=("dallies",), env=testbed.env, patience_s=0.5)
    plain, bare = WorkerTestbed(tmp_path, fork=False), WorkerTestbed(tmp_path, preload=())
    for each in (dies, dallies, plain, bare):
        await each.processes.warm_parent.start()
    assert [each.processes.warm_parent.importing_s() for each in (plain, bare)] == [0.0, 0.0]
    await until_async(lambda: len(dies.entries("parent_lost")) == 3)  # no other one takes its place
    assert dies.processes.warm_parent.importing_s() == 0.0
    await until_async(lambda: dallies.processes.warm_parent.importing_s() == 0.0)
    for each in (testbed, dies, dallies, plain, bare):
        await each.processes.close()


@pytest.mark.asyncio
async def test_of_one_round_some_are_forked_and_some_are_not(tmp_path):
    testbed = WorkerTestbed(tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"})
    warm = "'turnout.launcher.workers.forkserver.messages' in sys.modules"
    text = f"import sys, os; print({warm}, os.environ['OMP_NUM_THREADS'])"
    orders = [
        testbed.program(text),
        testbed.program(text, local_rank=1, env={"OMP_NUM_THREADS": "3"}),
        testbed.order("echo", "bare", local_rank=2, how=CommandKind.BARE),
        testbed.program(text, local_rank=3),
    ]
    ended = await testbed.run(*orders)
    assert {each.code for each in ended} == {0}
    assert [testbed.out(rank) for rank in range(4)] == ["True 1\n", "False 3\n", "bare\n", "True 1\n"]
    assert testbed.entries("processes_spawned") == [
        {"local_ranks": [2], "why": "--no-python"},
        {"local_ranks": [1], "why": "read at import and different: OMP_NUM_THREADS"},
    ]
    await testbed.processes.close()


@pytest.mark.asyncio
async def test_another_interpreter_is_used_as_it_is(tmp_path):
    testbed = WorkerTestbed(tmp_path)
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\necho "other $@"\nexec {PYTHON} "$@"\n')
    other.chmod(0o755)
    script = testbed.script("import sys; print(sys.argv[1])")
    await testbed.run(testbed.order(script, "-x", python=str(other)))
    assert testbed.out() == f"other -u {script} -x\n-x\n"
    assert testbed.why == [f"another interpreter: {other}"]
    await testbed.processes.close()


@pytest.mark.asyncio
async def test_close_leaves_no_parent_and_no_process(tmp_path):
    testbed = WorkerTestbed(tmp_path)
    text = "import os, time; print(os.getpid(), os.getppid(), flush=True); time.sleep(600)"
    await testbed.start(testbed.program(text), testbed.program(text, local_rank=1, env={"OMP_NUM_THREADS": "77"}))
    pids = [int(word) for rank in range(2) for word in (await testbed.line(rank)).split()]
    assert len(set(pids)) == 4  # two processes and their two parents
    await testbed.processes.close()
    assert not any(running(pid) for pid in pids)


# torch as far as a parent touches it, so that its late imports can do harm here.
TORCH = """
    class cuda:
        is_initialized = staticmethod(lambda: False)
        _is_in_bad_fork = staticmethod(lambda: False)
    class default_generator:
        manual_seed = staticmethod(lambda seed: None)
"""
HARMFUL = "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
FINDS = "import sys; print(sorted({'torch', 'torch._dynamo', 'torch.distributed.fsdp', 'own'} & sys.modules.keys()))"


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("files", "finds", "failed"),
    [
        pytest.param({}, ["own", "torch", "torch._dynamo", "torch.distributed.fsdp"], [], id="nothing does harm"),
        pytest.param(
            {"torch/_dynamo.py": HARMFUL}, ["own", "torch", "torch.distributed.fsdp"],
            ["torch._dynamo: 2 threads in the parent"], id="a late import of torch that starts a thread is left out",
        ),
        pytest.param(
            {"torch/_dynamo.py": HARMFUL, "torch/distributed/fsdp.py": HARMFUL}, ["own", "torch"],
            ["torch._dynamo: 2 threads in the parent", "torch.distributed.fsdp: 2 threads in the parent"],
            id="so are two",
        ),
        pytest.param(
            {"torch/__init__.py": "raise OSError('libcudart')"}, ["own"], ["torch: OSError"],
            id="nothing of torch is tried once torch has failed",
        ),
        pytest.param(
            {"sitecustomize.py": "import sys; sys.modules['torch'] = None"}, ["own", "torch"], [],
            id="a missing torch is no failure",
        ),
    ],
)  # fmt: skip
async def test_what_torch_imports_late_never_keeps_a_script_from_being_forked(tmp_path, files, finds, failed):
    testbed = WorkerTestbed(
        tmp_path, preload=("torch", "torch._dynamo", "torch.distributed.fsdp", "own"),
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    names = ("torch/_dynamo.py", "torch/distributed/__init__.py", "torch/distributed/fsdp.py", "own.py")
    for name, text in ({"torch/__init__.py": TORCH} | dict.fromkeys(names, "") | files).items():
        testbed.file(name, text)
    (exited,) = await testbed.run(testbed.program(FINDS))
    assert (exited.code, testbed.out(), testbed.why) == (0, f"{finds}\n", []), testbed.err()
    entries = [f"{each['module']}: {each['why']}" for each in testbed.entries("preload_failed")]
    assert [each[: len(start)] for each, start in zip(entries, failed, strict=True)] == failed
    await testbed.processes.close()

"""A program cannot tell whether it was forked from a parent that had imported ahead, or started as `python` starts it.

Each is run three times: by python itself, which is the judge, as a fork, and spawned.
"""

import os
import re
import signal
import subprocess

import pytest
import pytest_asyncio

from tests.launcher.workers.testbed import PYTHON, SECONDS, WorkerTestbed
from turnout.launcher.workers.worker_spec import CommandKind

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[True, False], ids=["forked", "spawned"])
async def testbed(request, tmp_path_factory):
    env = os.environ | {"OMP_NUM_THREADS": "1"}
    preload = ("json", "random", "multiprocessing")
    testbed = WorkerTestbed(tmp_path_factory.mktemp("programs"), fork=request.param, preload=preload, env=env)
    yield testbed
    await testbed.processes.close()


def decision_of(testbed, *command, cwd=None):
    """Run a command with python; give its exit code, stdout and stderr."""
    command = [PYTHON, "-u", *command]
    with subprocess.Popen(
        command, env=testbed.env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    ) as judge:
        out, err = judge.communicate(timeout=SECONDS)
    return judge.returncode, out.decode(), err.decode()


async def outcome_of(testbed, *orders):
    (exited, *_) = await testbed.run(*orders)
    return exited.code, testbed.out(), testbed.err()


SAME = {
    "arguments with dashes": "import sys; print(sys.argv[1:])",
    "what __main__ is": """
        import sys
        main = sys.modules["__main__"]
        print(__name__, __file__, __package__, __spec__, __cached__, __doc__, type(__loader__), __annotations__)
        print(sorted(vars(main)), main.__builtins__ is sys.modules["builtins"], main.__dict__ is globals())
    """,
    "where modules are found": "import sys; print(sys.path, sys.argv, sys.flags, sys.orig_argv[1:])",
    "what ps shows": "print(open('/proc/self/cmdline').read().rstrip('\\0').split('\\0'))",
    "its environment": """
        import os
        mark = os.environ.pop("TURNOUT_PARENT", "")  # by which the agent knows what descends from a dead parent
        print(sorted(os.environ.items()), os.getenv("HOME"))
    """,
    "an exception": """
        def fall():
            raise ValueError("fell")
        fall()
    """,
    "an exception of an exception": """
        try:
            1 / 0
        except ZeroDivisionError as error:
            raise RuntimeError("twice") from error
    """,
    "a hook for exceptions": """
        import sys, traceback
        sys.excepthook = lambda kind, value, trace: print("hook", value, len(traceback.extract_tb(trace)))
        raise ValueError("told")
    """,
    "wrong syntax": "def (:",
    "exit with a number": "import sys; sys.exit(7)",
    "exit with a text": "import sys; sys.exit('the reason')",
    "exit without anything": "raise SystemExit",
    "exit at once": "import os; os._exit(9)",
    "an interrupt": "raise KeyboardInterrupt",
    "killed by itself": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "aborted": "import os; os.abort()",
    "last words": """
        import atexit, sys, threading
        atexit.register(print, "atexit")
        threading.Thread(target=lambda: (threading.main_thread().join(), print("thread"))).start()
        sys.stdout.write("no end of line")
    """,
    "signals": """
        import signal
        print([(sig, signal.getsignal(sig)) for sig in signal.valid_signals() if sig != signal.SIGINT])
        print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(0, []))
        print(signal.set_wakeup_fd(-1))
    """,
    "open files and threads": """
        import os
        print(sorted(os.listdir("/proc/self/fd")), os.listdir("/proc/self/task") == [str(os.getpid())])
    """,
    "its own session": "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())",
    "outputs": """
        import sys
        for file in (sys.stdin, sys.stdout, sys.stderr):
            print(file.name, file.mode, file.encoding, file.errors, file.line_buffering, file.write_through)
    """,
    "the collector": "import gc; print(gc.isenabled(), gc.get_threshold())",
    "a source of another encoding": "# -*- coding: latin-1 -*-\nprint(ascii('é'))",
    "pickles of its classes": """
        import pickle
        class Point:
            x = 3
        print(pickle.loads(pickle.dumps(Point())).x, pickle.dumps(Point())[:40])
    """,
    "processes of every start method": """
        import multiprocessing
        class Point:
            def __init__(self, x):
                self.x = x
        def double(point):
            return Point(2 * point.x)
        if __name__ == "__main__":
            for method in ("fork", "spawn", "forkserver"):
                with multiprocessing.get_context(method).Pool(1) as pool:
                    print(method, [point.x for point in pool.map(double, [Point(1), Point(2)])])
    """,
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in SAME.items()])
async def test_a_script_is_what_python_makes_of_it(testbed, text):
    script = testbed.script(text)
    argv = (script, "--lr", "0.1", "-x", "--", "--", "a b", "")
    answer = decision_of(testbed, *argv)
    assert await outcome_of(testbed, testbed.order(*argv)) == answer
    assert testbed.why == ([] if testbed.forks else ["forking is off"])


@pytest.mark.parametrize(
    ("files", "argv"),
    [
        pytest.param(
            {"alone.py": "import sys; print(__name__, __spec__.name, __file__, sys.argv, sys.path)"},
            ["alone", "-m"],
            id="a module",
        ),
        pytest.param(
            {"pack/__init__.py": "", "pack/__main__.py": "print(__package__, __spec__.name)"}, ["pack"], id="a package"
        ),
        pytest.param({"falls.py": "import nowhere"}, ["falls"], id="a module that raises"),
        pytest.param({}, ["missing_module"], id="no such module"),
        pytest.param(
            {
                "pooled.py": """
                    import multiprocessing
                    class Point: pass
                    def give(_):
                        return Point()
                    if __name__ == "__main__":
                        with multiprocessing.get_context("spawn").Pool(1) as pool:
                            print([type(point) is Point for point in pool.map(give, [1])])
                """
            },
            ["pooled"],
            id="a pool of spawned processes",
        ),
    ],
)
async def test_a_module_is_what_python_makes_of_it(testbed, files, argv):
    for name, text in files.items():
        testbed.file(f"modules/{name}", text)
    folder = testbed.root / "modules"
    folder.mkdir(exist_ok=True)
    answer = decision_of(testbed, "-m", *argv, cwd=folder)
    assert await outcome_of(testbed, testbed.order(*argv, how=CommandKind.MODULE, cwd=str(folder))) == answer
    assert testbed.why == ([] if testbed.forks else ["forking is off"])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda testbed: str(testbed.root / "none.py"), id="that is not there"),
        pytest.param(lambda testbed: str(testbed.root), id="that is a folder"),
        pytest.param(lambda testbed: str(testbed.root / "folder"), id="that is a folder with a __main__"),
    ],
)
async def test_a_script_is_judged_by_python_where_it_is_no_file(testbed, make):
    testbed.file("folder/__main__.py", "import sys; print(__name__, sys.argv, sys.path[0])")
    path = make(testbed)
    answer = decision_of(testbed, path, "--flag")
    assert await outcome_of(testbed, testbed.order(path, "--flag")) == answer


async def test_a_script_named_by_a_relative_path_and_a_link_finds_its_neighbours(testbed):
    testbed.file("real/neighbour.py", "NAME = 'next door'")
    testbed.file("real/main.py", "import neighbour, os; print(neighbour.NAME, os.getcwd(), __file__)")
    link = testbed.root / "link.py"
    link.unlink(missing_ok=True)
    link.symlink_to(testbed.root / "real" / "main.py")
    answer = decision_of(testbed, "link.py", cwd=testbed.root)
    assert await outcome_of(testbed, testbed.order("link.py", cwd=str(testbed.root))) == answer


async def test_every_process_throws_its_own_dice(testbed):
    text = """
        import random, multiprocessing, uuid, tempfile
        print(random.random(), multiprocessing.current_process().authkey.hex(), uuid.uuid4(), tempfile.mktemp())
    """
    await testbed.run(*(testbed.program(text, local_rank=rank) for rank in range(3)))
    thrown = [word for rank in range(3) for word in testbed.out(rank).split()]
    assert len(thrown) == len(set(thrown)) == 12


async def test_a_process_runs_in_its_folder_with_its_environment_on_its_cpus(testbed):
    cpu = min(os.sched_getaffinity(0))
    order = testbed.program(
        "import os; print(os.getcwd(), os.environ['RANK'], os.sched_getaffinity(0), os.environ.get('GONE'))",
        env={"RANK": "5"},
        cwd="/",
        cpus=(cpu,),
    )
    assert await outcome_of(testbed, order) == (0, f"/ 5 {{{cpu}}} None\n", "")


@pytest.mark.parametrize(
    ("argv", "code", "err"),
    [
        pytest.param(["sh", "-c", "echo $0 $RANK; exit 3", "-x"], 3, "", id="a program of the PATH"),
        pytest.param(["/nowhere/at/all"], 127, "turnout-run: cannot run '/nowhere/at/all'", id="no such program"),
        pytest.param(["/etc/passwd"], 126, "turnout-run: cannot run '/etc/passwd'", id="no program"),
        pytest.param(["sh", "-c", "yes | head -1 >/dev/null; exit 0"], 0, "", id="a pipe that breaks quietly"),
    ],
)
async def test_a_program_without_python_is_executed(testbed, argv, code, err):
    environment, out, messages = await outcome_of(
        testbed, testbed.order(*argv, how=CommandKind.BARE, env={"RANK": "1"})
    )
    assert (environment, messages[: len(err)]) == (code, err)
    assert out == ("-x 1\n" if code == 3 else "")
    assert testbed.why in (["--no-python"], ["forking is off"])


async def test_a_process_whose_files_cannot_be_made_fails_and_says_why(testbed, capfd):
    missing = str(testbed.root / "no" / "folder")
    (exited,) = await testbed.run(testbed.program("print(1)", cwd=missing))
    assert exited.code == 126
    assert re.search(r"cannot start process 0: .*No such file", testbed.err())


async def test_ten_processes_of_a_round_are_all_there(testbed):
    text = "import os; print(os.environ['RANK'])"
    orders = [testbed.program(text, local_rank=rank, env={"RANK": str(rank)}) for rank in range(10)]
    assert {exited.code for exited in await testbed.run(*orders)} == {0}
    assert [testbed.out(rank) for rank in range(10)] == [f"{rank}\n" for rank in range(10)]


async def test_a_round_after_another_is_as_good_as_the_first(testbed):
    for each in range(5):
        assert await outcome_of(testbed, testbed.program(f"print({each})")) == (0, f"{each}\n", "")
    assert len(testbed.processes.pids()) == 0


async def test_an_interrupt_ends_a_process_by_that_signal(testbed):
    (exited,) = await testbed.run(testbed.program("raise KeyboardInterrupt"))
    assert (exited.code, exited.signal) == (-signal.SIGINT, "SIGINT")

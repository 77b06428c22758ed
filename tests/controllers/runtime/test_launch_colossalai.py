"""The launcher's script: waits for SSH servers, runs the command, keeps its last words; a shell takes its variables."""

import contextlib
import os
import socket
import subprocess
import sys
import threading

import pytest

from turnout.controllers.runtime import launch_colossalai
from turnout.controllers.runtime.launch_colossalai import NO_ANSWER, exportable_variables


@contextlib.contextmanager
def greeting(words):
    """A server that says this to whoever connects; gives its port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(words)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def launched(folder, port, *command, env=None):
    """Run the script as a container does; its exit code, its output, and the termination log."""
    (folder / "hostfile").write_text("127.0.0.1\n")
    argv = [sys.executable, launch_colossalai.__file__, folder / "hostfile", str(port), "0.5", folder / "log"]
    done = subprocess.run(
        [*argv, *command], capture_output=True, text=True, timeout=60, check=False, env={**os.environ, **(env or {})}
    )
    return done.returncode, done.stdout, (folder / "log").read_text()


@pytest.mark.parametrize(
    ("script", "code", "last"),
    [
        pytest.param("echo begun; echo a: success", 0, "begun\na: success\n", id="it ends well"),
        pytest.param("echo a: failure; exit 7", 7, "a: failure\n", id="its own code"),
        pytest.param("kill -9 $$", 137, "", id="the code of a signal"),
        pytest.param("seq 1 5000; echo a: success", 0, "a: success\n", id="the end of much output"),
        pytest.param("printf '失败%.0s' $(seq 1000); echo", 0, "失败\n", id="characters of several bytes"),
    ],
)
def test_the_commands_code_and_last_words_are_the_launchers(tmp_path, script, code, last):
    with greeting(b"SSH-2.0-any\r\n") as port:
        ended, out, last_words = launched(tmp_path, port, "sh", "-c", script)
    assert ended == code
    assert out.endswith(last)
    assert last_words.endswith(last)
    assert len(last_words.encode()) <= launch_colossalai.BYTES


@pytest.mark.parametrize("words", [b"", b"HTTP/1.1 400\r\n"], ids=["silence", "another protocol"])
def test_nothing_is_run_before_ssh_answers(tmp_path, words):
    with greeting(words) as port:
        code, out, last_words = launched(tmp_path, port, "echo", "begun")
    assert (code, out) == (NO_ANSWER, "")
    assert last_words == f"no SSH server answers on port {port} in 0.5 s: 127.0.0.1\n"


@pytest.mark.parametrize(
    "text", ['{"a": "b"}', "$HOME", "`date`", "\\", 'a "b" $c \\', "two\nlines", "it's", ""], ids=repr
)
def test_a_value_reaches_a_host_as_it_is(text):
    """The runner writes `export NAME="value"` for the shell of each host."""
    (value,) = exportable_variables({"V": text}).values()
    done = subprocess.run(
        ["bash", "-c", f'export V="{value}" && printenv -0 V'], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == f"{text}\0"


@pytest.mark.parametrize("name", ["a.b", "a-b", "BASH_FUNC_f%%", "UID", "SHELLOPTS", "HOSTNAME"])
def test_a_name_that_a_host_cannot_export_or_has_itself_stays_here(name):
    assert exportable_variables({name: "1", "B": "2"}) == {"B": "2"}


def test_the_command_gets_the_variables_in_that_form(tmp_path):
    with greeting(b"SSH-2.0-any\r\n") as port:
        _, out, _ = launched(tmp_path, port, "printenv", "V", env={"V": '"'})
    assert out == '\\"\n'

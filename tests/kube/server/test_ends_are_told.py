"""No program dies in silence: its last line names it and the fault, in the log as a machine reads it."""

import json
import subprocess
import sys

import pytest

from turnout.kube.client.run_until_signal import run_program
from turnout.kube.errors import BadKubeconfig

PROGRAMS = {
    "turnout-extender": "turnout.scheduler_ext.__main__",
    "turnout-nominator": "turnout.scheduler_ext.nominator",
    "turnout-autoscaler": "turnout.autoscaler.__main__",
    "turnout-controller": "turnout.controllers.__main__",
    "turnout page": "turnout.cli.__main__",
}
BROKEN = """
import sys
from importlib import import_module
from turnout.kube.client.api_client import Client

class Broken(Exception):
    pass

async def fails(*_, **__):
    raise Broken("of ours")

ARGUMENTS = {
    "turnout.controllers.__main__": ["--kinds", "ElasticJob"],
    "turnout.cli.__main__": ["page", "--serve", "--listen", "127.0.0.1:0"],
}
Client.open = fails
print([import_module(each).main(ARGUMENTS.get(each, [])) for each in sys.argv[1:]])
"""


def test_a_fault_of_ours_ends_none_of_the_programs_in_silence():
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, *PROGRAMS.values()], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[1, 1, 1, 1, 1]\n"
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(each["event"], each["level"], each["program"]) for each in lines] == [
        ("ended_by_a_fault", "critical", name) for name in PROGRAMS
    ]
    assert all("Broken: of ours" in each["trace"] for each in lines)


@pytest.mark.parametrize(("error", "code", "output", "event"), [
    pytest.param(None, 0, "", [], id="one that was told to end says nothing"),
    pytest.param(OSError("in use"), 1, "it: in use\n", [], id="what it cannot start with is one line"),
    pytest.param(BadKubeconfig("none"), 1, "it: ", [], id="such as a kubeconfig"),
    pytest.param(KeyError("x"), 1, "", ["ended_by_a_fault"], id="a fault of ours is in the log"),
    pytest.param(ExceptionGroup("g", [KeyError("x")]), 1, "", ["ended_by_a_fault"], id="and several at once"),
])  # fmt: skip
def test_how_a_program_ends(error, code, output, event, capsys, caplog):
    async def serve():
        if error is not None:
            raise error

    assert run_program("it", serve) == code
    assert capsys.readouterr().err.startswith(output)
    assert [record.msg for record in caplog.records] == event

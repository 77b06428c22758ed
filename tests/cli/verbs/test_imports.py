"""A command starts fast: it imports no library that it does not use."""

import asyncio
import json
import sys

import pytest

from tests.kube.world import kubeconfig, scripted

SLOW = ("aiohttp", "importlib.metadata", "kubernetes", "networkx", "pydantic", "rich", "email.utils")
ASK = """
import json, sys
from turnout.cli.programs import turnout
sys.argv = ["turnout", *json.loads(sys.argv[1])]
try:
    turnout()
except SystemExit:
    pass
print(json.dumps([name for name in json.loads(sys.argv_slow) if name in sys.modules]), file=sys.stderr)
""".replace("sys.argv_slow", repr(json.dumps(SLOW)))


async def imported(*words):
    """Which slow modules a command has imported at its end."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ASK, json.dumps(words), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, complaint = await child.communicate()
    return json.loads(complaint.decode().splitlines()[-1])


@pytest.mark.asyncio
@pytest.mark.parametrize(
    "words",
    [
        pytest.param(["why", "bert"], id="why"),
        pytest.param(["history", "bert"], id="history"),
        pytest.param(["jobs"], id="jobs"),
        pytest.param(["queues"], id="queues"),
        pytest.param(["top"], id="top"),
        pytest.param(["nodes"], id="nodes"),
        pytest.param(["pause", "VolcanoJob/team-a/bert"], id="pause"),
    ],
)
async def test_a_verb_on_a_plain_kubeconfig_imports_no_slow_library(words, tmp_path):
    async with scripted() as script:
        assert await imported(*words, "--kubeconfig", kubeconfig(tmp_path, script.url)) == []


@pytest.mark.asyncio
@pytest.mark.parametrize("words", [["--help"], ["why", "--help"], ["simulate", "--help"], ["local", "up", "--help"]])
async def test_a_help_imports_no_slow_library(words):
    assert await imported(*words) == []

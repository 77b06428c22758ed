"""The pod of `helm test`: it checks an extender over TLS, and the kinds that the API server serves."""

from __future__ import annotations

import asyncio
import importlib.util
import socket

import pytest

from hack.images.wheels import ROOT
from tests.kit.certificates import Authority
from tests.scheduler_ext.server.test_tls import files, opened

SCRIPT = ROOT / "deploy/charts/turnout/files/check_installation.py"


@pytest.fixture(scope="module")
def script():
    """The script as a module: the chart has it as a text."""
    spec = importlib.util.spec_from_file_location("check_installation", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def authority():
    return Authority()


def mounted(folder, authority, by):
    """The Secret of kube-scheduler as the pod has it. by: who has signed its certificate."""
    folder.mkdir()
    files(folder, by.client(), authority)
    return folder


@pytest.mark.asyncio
@pytest.mark.parametrize(
    ("asks_for_certificates", "known", "code", "words"),
    [
        pytest.param(True, True, 0, ("ok      the extender answers", "ok      the extender refuses"), id="all is well"),
        pytest.param(True, False, 1, ("FAILED  the extender answers",), id="kube-scheduler's certificate is refused"),
        pytest.param(False, True, 1, ("FAILED  the extender refuses",), id="anybody is answered"),
    ],
)
async def test_the_extender(asks_for_certificates, known, code, words, script, authority, tmp_path, capsys):
    served = tmp_path / "served"
    served.mkdir()
    tls = files(served, authority.sign("server"), authority if asks_for_certificates else None)
    signer = authority if known else Authority("stranger")
    async with opened(tls) as (listeners, *_):
        argv = [f"--extender=127.0.0.1:{listeners.port}", f"--tls={mounted(tmp_path / 'tls', authority, signer)}"]
        assert await asyncio.to_thread(script.main, [*argv, "--patience-s=0"]) == code
    printed = capsys.readouterr().out
    for each in words:
        assert each in printed


def test_an_extender_that_is_not_there_fails_with_its_address(script, authority, tmp_path, capsys):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        tls = mounted(tmp_path / "tls", authority, authority)
        assert script.main([f"--extender={address}", f"--tls={tls}", "--patience-s=0"]) == 1
    assert f"at {address}: [Errno 111] Connection refused" in capsys.readouterr().out

"""A real control plane for a local cluster, in a child process that ends with this one."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from turnout.cli.local_cluster.daemon import LocalClusterFailed
from turnout.cli.verb_support.child_programs import die_with_parent

_MODULE = "hack.controlplane"
_UP_S, _DOWN_S = 90.0, 10.0
_MARK = "export KUBECONFIG="


@dataclass(frozen=True, slots=True)
class Plane:
    """A running control plane."""

    kubeconfig: Path
    authority: Path  # of the certificates of all callers
    certificate: Path  # of its servers
    key: Path  # of its servers


def check() -> None:
    """Raise LocalClusterFailed unless this is a source checkout, which alone has the module of the control plane.

    Whether its programs are built is not checked here.
    """
    try:
        module = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        module = None
    if module is None:
        raise LocalClusterFailed(
            "--real needs a checkout of turnout, in which `make controlplane` has built the programs"
        )


@asynccontextmanager
async def control_plane(extender: str, kwok: bool) -> AsyncIterator[Plane]:
    """Run a real control plane during the block; yields it once it is ready.

    extender: URL of the extender that its scheduler asks, "" for none. kwok: also simulate the kubelets. Raises
    LocalClusterFailed if it ends before it is ready, or is not ready within _UP_S seconds.
    """
    flags = [*(("--extender", extender) if extender else ()), *(() if kwok else ("--no-kwok",))]
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", _MODULE, "up", "--nodes", "0", *flags),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        preexec_fn=die_with_parent if sys.platform == "linux" else None,  # its supervisor then ends all the rest
    )
    try:
        yield await _ready(child)
    finally:
        await _end(child)


async def _ready(child: asyncio.subprocess.Process) -> Plane:
    """Return the control plane once the child has printed its addresses.

    Raises LocalClusterFailed if the child ends first, or does not print them within _UP_S seconds.
    """
    assert child.stdout is not None
    lines: list[str] = []
    try:
        async with asyncio.timeout(_UP_S):
            async for line in child.stdout:
                lines.append(line.decode(errors="replace").rstrip())
                if lines[-1].startswith(_MARK):
                    path = Path(lines[-1].removeprefix(_MARK))
                    pki = path.parent / "pki"
                    return Plane(path, pki / "ca.crt", pki / "server.crt", pki / "server.key")
    except TimeoutError as error:
        raise LocalClusterFailed(f"the control plane was not up within {_UP_S:g} s:\n" + "\n".join(lines)) from error
    raise LocalClusterFailed("the control plane ended:\n" + "\n".join(lines))


async def _end(child: asyncio.subprocess.Process) -> None:
    """Stop the child with SIGTERM, and with SIGKILL after _DOWN_S seconds; wait until it has ended."""
    if child.returncode is None:
        child.terminate()
        try:
            async with asyncio.timeout(_DOWN_S):
                await child.communicate()
        except TimeoutError:
            child.kill()
            await child.wait()

"""The commands of the README of deploy/manifests, typed as they stand with kubectl on a real API server."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess

import pytest

from hack.codegen import chart
from hack.controlplane.tools import cache

pytestmark = [pytest.mark.real, pytest.mark.asyncio]

README = chart.ROOT / chart.MANIFESTS / "README.md"


def blocks():
    """Give the README's blocks of commands that have kubectl apply files, in order."""
    found = re.findall(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    return [block for block in found if block.startswith("kubectl apply")]


async def typed(plane, folder, block):
    """Run a block in a shell that stops at the first fault. Gives what it printed."""
    path = f"{cache.binary('kubectl').parent}:{os.environ['PATH']}"
    env = {"HOME": str(folder), "KUBECONFIG": str(plane.kubeconfig), "PATH": path}
    argv = ["sh", "-euc", block]
    done = await asyncio.to_thread(
        subprocess.run, argv, cwd=chart.ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
    return done.stdout


async def test_every_command_is_taken_and_acting_is_taken_back(control_plane, tmp_path):
    install, act, *_ = blocks()
    (back,) = (block for block in blocks() if "kubectl delete" in block)
    printed = await typed(control_plane, tmp_path, install)
    for each in ("namespace/turnout-system", "configmap/node-topology-config", "deployment.apps/turnout-extender"):
        assert f"{each} created" in printed
    await typed(control_plane, tmp_path, act)
    async with control_plane.api() as api:
        path = "/apis/apps/v1/namespaces/turnout-system/deployments/turnout-autoscaler"
        deployment = await api.get(path)
        assert "--act" in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        await typed(control_plane, tmp_path, back)
        deployment = await api.get(path)
        assert "--act" not in deployment["spec"]["template"]["spec"]["containers"][0]["args"]
        roles = (await api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles"))["items"]
        assert not [each for each in roles if "-resize-" in each["metadata"]["name"]]

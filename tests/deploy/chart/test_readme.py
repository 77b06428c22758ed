"""The README's path of a new user, its code blocks run as they stand, from the map to a gang under one leaf."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import pytest_asyncio

from hack.chaos.chart.world import CHART, POD_IP_FLAG, cluster
from hack.controlplane.tools import cache, parts
from hack.lint.code_blocks import run_by
from turnout.simulator.cluster.node_builder import nodes_of_map
from turnout.topology.map_formats import read_text

pytestmark = [pytest.mark.slow, pytest.mark.real, pytest.mark.asyncio, pytest.mark.root]

ROOT = CHART.parents[2]


def kubernetes():
    """Give the version of the control plane that the tests run."""
    return parts.version(parts.BY_NAME["kube-apiserver"], (parts.MODULES / "kube" / "go.mod").read_text())


# What the registries have: the image that the reader has pushed, and one that others publish. Any other image stays in
# ErrImagePull, and `helm --wait` then fails.
PUBLISHED = {"registry.example.org/turnout:0.1.0", f"registry.k8s.io/kube-scheduler:v{kubernetes()}"}
# Pods of this cluster share one network: each listens at its own address, and one scheduler alone at 127.0.0.1.
HELM = f"""#!/bin/sh
exec {{helm}} "$@" {" ".join(f"'{word}'" for word in (*POD_IP_FLAG, "--set", "scheduler.replicas=1", "--timeout=180s"))}
"""


def blocks():
    """Give the README's code blocks that a new user types, in order."""
    return [
        block.text
        for block in run_by("tests/deploy/chart/test_readme.py::test_the_readme_alone_leads_to_a_gang_under_one_leaf")
    ]


def entries():
    """The hosts of the README's map."""
    (text,) = re.findall(r"topology.txt <<'EOF'\n(.*?)EOF\n", blocks()[0], re.DOTALL)
    return read_text(text).entries


@pytest_asyncio.fixture
async def world(control_plane, tmp_path, monkeypatch):
    """A machine with helm and kubectl on its path, in a clone. The image of kube-scheduler has that program."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "helm").write_text(HELM.format(helm=cache.binary("helm")))
    (programs / "helm").chmod(0o755)
    for name in ("deploy", "examples"):
        (tmp_path / name).symlink_to(ROOT / name)
    kubernetes = cache.binary("kubectl").parent  # of kube-scheduler, too
    own = Path(sys.executable).parent
    monkeypatch.setenv("PATH", os.pathsep.join([str(programs), str(kubernetes), str(own), os.environ["PATH"]]))
    async with cluster(control_plane, tmp_path, nodes_of_map(entries()), PUBLISHED) as installed:
        yield installed


async def typed(world, folder, block):
    """Run one block of the README in a shell that stops at the first fault. Gives what it printed."""
    env = {"HOME": str(folder), "KUBECONFIG": str(world.plane.kubeconfig), "PATH": os.environ["PATH"]}
    done = await asyncio.to_thread(
        subprocess.run,
        ["sh", "-euc", block],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}{await world.describe_pods()}"
    return done.stdout


async def node_by_pod(world):
    """The Event about the gang that landed, once it is there."""
    events = (await world.get("/api/v1/namespaces/default/events"))["items"]
    return next((event for event in events if event["reason"] == "Placed"), None)


async def test_the_readme_alone_leads_to_a_gang_under_one_leaf(world, tmp_path):
    *steps, look = blocks()
    for block in steps:
        await typed(world, tmp_path, block)
    answers = await typed(world, tmp_path, look)
    for about in ("kubernetes ", "installed    extender", "installed    scheduler", "map          all 6 GPU nodes"):
        assert f"✓ {about}" in answers
    assert "✗" not in answers
    event = await world.until(lambda: node_by_pod(world))
    assert event["involvedObject"]["kind"] == "Job"
    assert event["message"].startswith("Placed: 4 pods under 1 leaf switch, 1 spine switch, ")
    pods = (await world.get("/api/v1/namespaces/default/pods"))["items"]
    leaves = {place.name: place.path for place in nodes_of_map(entries())}
    assert len(pods) == 4
    assert len({leaves[pod["spec"]["nodeName"]] for pod in pods}) == 1

"""The topology ConfigMap under a running extender: edited, broken, deleted."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from hack.controlplane.tools import cache
from tests.kit import cluster
from turnout.topology.fabric import build, ring_cost
from turnout.topology.map_formats import read_map

pytestmark = [pytest.mark.real, pytest.mark.asyncio]
CONFIG = "/api/v1/namespaces/default/configmaps/node-topology-config"
FAULTS = "turnout_topology_map_errors"


def reloads(outcome):
    return f'turnout_topology_reloads_total{{outcome="{outcome}"}}'


EDITOR = """
import sys, yaml
from pathlib import Path
new, shown = Path(sys.argv[1]), Path(sys.argv[2])
edited = yaml.safe_load(shown.read_text())
edited["data"]["topology_config"] = new.read_text()
shown.write_text(yaml.safe_dump(edited))
"""


async def kubectl(stage, *words, **environment):
    """Run the real kubectl as the administrator; give what it prints."""
    command = [cache.binary("kubectl"), "--kubeconfig", stage.plane.kubeconfig, "--namespace", "default", *words]
    env = {**os.environ, **environment}
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def edit(stage, text, folder):
    """Change the map with `kubectl edit`, whose editor is a script."""
    (folder / "editor.py").write_text(EDITOR)
    (folder / "new").write_text(text)
    editor = f"{sys.executable} {folder / 'editor.py'} {folder / 'new'}"
    await kubectl(stage, "edit", "configmap", "node-topology-config", KUBE_EDITOR=editor)


def turned(stage):
    """Deal the same hosts over the leaves anew: the first of each old leaf together, then the second, and so on."""
    ips = [line.split()[2] for line in stage.text.splitlines()]
    return "".join(f"asw-{at % 8:02d} psw-{at % 8 // 2:02d} {ip}\n" for at, ip in enumerate(ips))


@pytest.mark.contract("CS-06", "DL-106")
async def test_an_edited_map_changes_the_next_gang(stage, tmp_path):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    await stage.submit(*cluster.koordinator_gang("before", 8))
    assert len(stage.leaves(await stage.landed("before", 8))) == 1
    since_s = time.monotonic()
    stage.text = turned(stage)
    await edit(stage, stage.text, tmp_path)
    shown = await kubectl(stage, "describe", "configmap", "node-topology-config")
    assert all(line in shown for line in stage.text.splitlines())
    await stage.eventually(lambda: stage.metric(reloads("MapChangedMuch")) == 1, within_s=5)
    assert time.monotonic() - since_s < 5
    await stage.events("MapChangedMuch")  # every host moved: applied, and told
    stage.leaf = cluster.leaf_of(stage.text)
    await stage.submit(*cluster.koordinator_gang("after", 7))
    node_by_pod = await stage.landed("after", 7)
    assert len(stage.leaves(node_by_pod)) == 1
    fabric = build(read_map({"topology_config": stage.text}).entries)
    by_rank = [fabric.id_of_host[stage.ip_of[node_by_pod[f"after-{i}"]]] for i in range(7)]
    assert ring_cost(fabric, by_rank).total == 0


@pytest.mark.contract("CS-06", "DL-106")
@pytest.mark.parametrize("fate", ["garbage", pytest.param("gone", marks=pytest.mark.slow)])
async def test_a_map_that_is_broken_or_deleted_leaves_the_last_good_one_in_use(stage, fate, tmp_path):
    await stage.build()
    stage.start_extender()
    stage.start_scheduler()
    if fate == "garbage":
        await edit(stage, "asw-00 psw-00\nnot an address at all\n", tmp_path)
        (event, *_) = await stage.events("MapRejected")
        assert "line 1" in event["message"]
        assert event["involvedObject"]["kind"] == "ConfigMap"
        await stage.eventually(lambda: stage.metric(FAULTS) == 2, within_s=5)
    else:
        async with stage.plane.api() as api:
            await api.delete(CONFIG)
        await stage.events("MapMissing")
    await stage.submit(*cluster.koordinator_gang("bert", 8))
    assert len(stage.leaves(await stage.landed("bert", 8))) == 1
    assert stage.view()["mapped_hosts"] == 64

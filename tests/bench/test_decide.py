"""The autoscaler that is fed with files takes in all of them, in a process of its own."""

from __future__ import annotations

import random
from itertools import islice

from hack.bench.decide import cluster, feeder
from hack.bench.decide.cluster import GPU, PER_NODE, PODS


def test_every_node_of_the_cluster_is_full():
    made = cluster.built(60, 80, random.Random(1), waiters=2)
    pods = made.objects[PODS].values()
    asked = [(pod["spec"].get("nodeName"), pod["spec"]["containers"][0]["resources"]["requests"][GPU]) for pod in pods]
    assert sum(int(gpus) for node, gpus in asked if node) == 80 * PER_NODE
    assert [gpus for node, gpus in asked if not node] == ["8"] * 4


def test_an_autoscaler_takes_in_every_change_that_it_is_fed(tmp_path):
    dice = random.Random(2)
    made = cluster.built(60, 80, dice, waiters=2)
    feeder.write(tmp_path, made, islice(cluster.changes(made, dice), 900))
    told = feeder.told(tmp_path)
    assert (told["changes"], told["jobs"], told["nodes"]) == (900, 62, 80)
    assert told["pods"] == len(made.objects[PODS])
    assert told["look_s"]
    assert told["peak_mib"] >= told["mib"] > told["before_mib"] / 2

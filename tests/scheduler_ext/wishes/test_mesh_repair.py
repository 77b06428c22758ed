"""A member of a mesh that dies comes back beside those to whom it sends most, not beside its neighbours in the ring."""

from tests.scheduler_ext.wishes.stage import Stage
from tests.scheduler_ext.wishes.test_layered_wishes import only
from tests.scheduler_ext.wishes.test_wishes import job
from turnout.kube import labels

MESH = {labels.MESH: "ep=2,dp=2,tp=8"}  # pods 0 and 2 exchange experts, as do 1 and 3; in the ring 2 is between 1 and 3


def test_a_lost_pod_returns_to_its_experts():
    stage = Stage(only(s0l0=3, s0l1=3))
    pods = job(4, notes=MESH)
    node_by_pod = dict(stage.schedule(pods))
    home = node_by_pod["g-0"][:4]
    assert home == node_by_pod["g-2"][:4] != node_by_pod["g-1"][:4] == node_by_pod["g-3"][:4]
    stage.leave_pod("g-2")
    assert stage.schedule(pods[2:3])["g-2"].startswith(home)


def test_two_lost_pods_return_each_to_its_own():
    stage = Stage(only(s0l0=3, s0l1=3))
    pods = job(4, notes=MESH)
    node_by_pod = dict(stage.schedule(pods))
    for name in ("g-1", "g-2"):
        stage.leave_pod(name)
    replacements = stage.schedule(pods[1:3])
    assert {name: host[:4] for name, host in replacements.items()} == {
        name: host[:4] for name, host in node_by_pod.items()
    }

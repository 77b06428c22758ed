"""Every verdict of `turnout check`: each thing that has to be right, alone."""

from dataclasses import replace

import pytest

from turnout.cli.check.facts import samples
from turnout.cli.check.verdicts import ClusterFacts, Level, lines
from turnout.kube.times import rfc3339

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0


def node(name, gpus="8"):
    return {
        "metadata": {"name": name},
        "status": {
            "allocatable": {"nvidia.com/gpu": gpus},
            "addresses": [{"type": "InternalIP", "address": f"ip-{name}"}],
        },
    }


def deployment(component, ready=2, version="0.1.0", args=()):
    labels = {"app.kubernetes.io/name": f"turnout-{component}", "app.kubernetes.io/version": version}
    return {
        "metadata": {"name": f"turnout-{component}", "namespace": "gpu-team", "labels": labels},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"args": list(args)}]}}},
        "status": {"readyReplicas": ready} if ready else {},
    }


def lease(name, age_s=1.0, holder="pod-1"):
    spec = {"holderIdentity": holder, "renewTime": rfc3339(NOW_S - age_s), "leaseDurationSeconds": 15}
    return {"metadata": {"name": name, "namespace": "gpu-team"}, "spec": spec}


def page(requests=7, offered=((8, 7),), ends_s=NOW_S + 300 * DAY_S):
    """An extender's metrics. offered: how many answers named at most so many nodes."""
    text = f'turnout_extender_requests_total{{verb="filter",outcome="ok"}} {requests}\n'
    text += "# TYPE turnout_extender_answer_nodes histogram\n"
    for bound, count in (*offered, ("+Inf", offered[-1][1])):
        text += f'turnout_extender_answer_nodes_bucket{{verb="prioritize",le="{bound}"}} {count}\n'
    return samples(text + f"turnout_tls_certificate_expiry_timestamp_seconds {ends_s}\n")


def the_map(text):
    return {"gpu-team": {"data": {"topology_config": text}}}


FINE = ClusterFacts(
    own_version="0.1.0",
    now_s=NOW_S,
    server_version="v1.35.4",
    server_clock_ahead_s=0.4,
    nodes=[node("n1"), node("n2"), node("cpu", "0")],
    deployments=[deployment("extender"), deployment("controller", args=["--kinds=ElasticJob,PyTorchJob"])],
    other_deployments=[("kube-system", "coredns")],
    leases=[lease("turnout-controller")],
    heartbeats=[lease("n1"), lease("n2", 9)],
    map_configmaps=the_map("leaf-1 spine-1 ip-n1\nleaf-1 spine-1 ip-n2\n"),
    extender_metrics={"turnout-extender-a": page(0), "turnout-extender-b": page()},
)


def test_all_is_fine_where_all_is_right():
    found = lines(FINE)
    assert {line.level for line in found} == {Level.FINE}
    assert {line.about for line in found} == {
        *("kubernetes", "installed", "leader", "map", "way", "extender", "certificate", "clocks")
    }
    assert not any(line.remedy for line in found if line.about != "way")


def many(count, **more):
    """A cluster of so many nodes."""
    nodes = [node(f"n{each}") for each in range(count)]
    text = "".join(f"leaf-{each // 8} spine-1 n{each}\n" for each in range(count))
    return replace(FINE, nodes=nodes, map_configmaps=the_map(text), **more)


WRONG, DOUBTFUL, UNKNOWN = Level.WRONG, Level.DOUBTFUL, Level.UNKNOWN
# What is seen, the verdict, what it is about, a part of the text, a part of the remedy.
CASES = {
    "an API server older than any that serves our policies": (
        replace(FINE, server_version="v1.28.9-eks"),
        (WRONG, "kubernetes", "1.28.9-eks is older than 1.29", "upgrade the cluster"),
    ),
    "one newer than what was tried": (
        replace(FINE, server_version="v1.38.0"),
        (DOUBTFUL, "kubernetes", "1.37 is the newest", "upgrade Turnout"),
    ),
    "nothing is installed": (
        replace(FINE, deployments=[]),
        (WRONG, "installed", "no Deployment of Turnout", "helm upgrade --install"),
    ),
    "no replica is ready": (
        replace(FINE, deployments=[deployment("extender", 0)]),
        (WRONG, "installed", "extender in gpu-team: 0 of 2 ready", "describe deployment turnout-extender"),
    ),
    "a Deployment is scaled to 0": (
        replace(FINE, deployments=[{**deployment("autoscaler", 0), "spec": {"replicas": 0}}]),
        (DOUBTFUL, "installed", "autoscaler in gpu-team is scaled to 0", "scale deployment turnout-autoscaler"),
    ),
    "one replica of two is ready": (
        replace(FINE, deployments=[deployment("extender", 1)]),
        (DOUBTFUL, "installed", "1 of 2 ready", "describe deployment"),
    ),
    "another version than this program's": (
        replace(FINE, deployments=[deployment("extender", version="0.2.0")]),
        (DOUBTFUL, "installed", "of version 0.2.0; this program is 0.1.0", "the same version"),
    ),
    "a Lease that nobody holds": (
        replace(FINE, leases=[lease("turnout-autoscaler", holder="")]),
        (WRONG, "leader", "nobody holds the Lease turnout-autoscaler", "get pods"),
    ),
    "a holder that is gone": (
        replace(FINE, leases=[lease("turnout-autoscaler", age_s=31)]),
        (WRONG, "leader", "was last heard 31 s ago", "logs"),
    ),
    "a clock that is not the API server's, by whose time a holder is heard": (
        replace(
            FINE,
            server_clock_ahead_s=-40.0,
            leases=[lease("turnout-autoscaler", age_s=41)],
            heartbeats=[lease("n1", 41)],
        ),
        (DOUBTFUL, "clocks", "the API server's clock is 40 s behind", "chrony"),
    ),
    "an empty map": (
        replace(FINE, map_configmaps=the_map("")),
        (WRONG, "map", "the map of gpu-team is empty", "edit configmap node-topology-config"),
    ),
    "no map at all": (
        replace(FINE, map_configmaps={"gpu-team": None}),
        (WRONG, "map", "there is no map in gpu-team", "write the ConfigMap node-topology-config"),
    ),
    "a map with a fault": (
        replace(FINE, map_configmaps=the_map("leaf-1 spine-1 n1\nleaf-2 n2\n")),
        (WRONG, "map", "the first in line 2", "edit configmap"),
    ),
    "some GPU nodes are not on the map": (
        replace(FINE, map_configmaps=the_map("leaf-1 spine-1 n1\n")),
        (DOUBTFUL, "map", "1 of 2 GPU nodes is not on the map: n2", "edit configmap"),
    ),
    "no GPU node is on the map": (
        replace(FINE, map_configmaps=the_map("leaf-1 spine-1 cpu\n")),
        (WRONG, "map", "2 of 2 GPU nodes are not on the map: n1, n2", "edit configmap"),
    ),
    "the map has hosts of another cluster": (
        replace(FINE, map_configmaps=the_map("leaf-1 spine-1 n1\nleaf-1 spine-1 n2\nleaf-1 spine-1 n9\n")),
        (DOUBTFUL, "map", "1 host of the map is no node of this cluster: n9", "edit configmap"),
    ),
    "no node offers GPUs": (
        replace(FINE, nodes=[node("cpu", "0")], map_configmaps=the_map("leaf-1 spine-1 cpu\n")),
        (DOUBTFUL, "nodes", "no node offers GPUs", "device plugin"),
    ),
    "an extender that no scheduler asks": (
        replace(FINE, extender_metrics={"turnout-extender-a": page(0), "turnout-extender-b": page(0)}),
        (WRONG, "extender", "it was never asked", "kube-scheduler's configuration"),
    ),
    "an extender whose metrics cannot be had": (
        replace(FINE, extender_metrics={"turnout-extender-a": None}),
        (UNKNOWN, "extender", "does not show the metrics of turnout-extender-a", "port-forward"),
    ),
    "a scheduler that offers a tenth of the nodes": (
        many(500, extender_metrics={"a": page(offered=((8, 3), (64, 20), (512, 20)))}),
        (DOUBTFUL, "extender", "at most 64 of 500 nodes", "percentageOfNodesToScore: 100"),
    ),
    "a certificate that ends in a week": (
        replace(FINE, extender_metrics={"a": page(ends_s=NOW_S + 7 * DAY_S)}),
        (DOUBTFUL, "certificate", "for 7 more days", "renew it: helm upgrade"),
    ),
    "a certificate that has ended": (
        replace(FINE, extender_metrics={"a": page(ends_s=NOW_S - 1), "b": page()}),
        (WRONG, "certificate", "has ended", "renew it: helm upgrade"),
    ),
    "a kind with two controllers": (
        replace(FINE, other_deployments=[("kubeflow", "training-operator")]),
        (WRONG, "controllers", "PyTorchJobs have two controllers: ours, and training-operator", "controller.kinds"),
    ),
    "a node whose clock is ahead": (
        replace(FINE, heartbeats=[lease("n1", -30), lease("n2")]),
        (DOUBTFUL, "clocks", "clocks of nodes are ahead: n1", "chrony"),
    ),
    "a node that is not heard": (
        replace(FINE, heartbeats=[lease("n1", 300), lease("n2")]),
        (DOUBTFUL, "clocks", "heartbeats of nodes are late, or their clocks behind: n1", "kubectl get nodes"),
    ),
    "what may not be seen": (
        replace(FINE, nodes=None, refused={"/api/v1/nodes": "nodes is forbidden"}),
        (UNKNOWN, "rights", "/api/v1/nodes cannot be seen: nodes is forbidden", "turnout-viewer"),
    ),
}


@pytest.mark.parametrize(("facts", "verdict"), CASES.values(), ids=CASES)
def test_what_is_not_right_is_told_with_its_remedy(facts, verdict):
    word, about, text, remedy = verdict
    (found,) = (line for line in lines(facts) if line.level is not Level.FINE and line.about != "way")
    assert (found.level, found.about) == (word, about)
    assert text in found.text
    assert remedy in found.remedy


def test_a_small_part_of_a_small_cluster_is_no_doubt():
    """kube-scheduler searches all nodes of up to 100 whatever its configuration says."""
    found = lines(many(100, extender_metrics={"a": page(offered=((8, 7),))}))
    assert {line.level for line in found} == {Level.FINE}


def test_another_controller_of_a_kind_that_we_leave_alone_is_fine():
    found = lines(replace(FINE, other_deployments=[("volcano-system", "volcano-controllers")]))
    assert {line.level for line in found} == {Level.FINE}


@pytest.mark.parametrize("text", ["", "\x00", "turnout_extender_requests_total{ 1\n", "a b c d\n" * 9])
def test_a_page_that_is_none_is_an_extender_that_was_never_asked(text):
    verdicts = [
        line.level for line in lines(replace(FINE, extender_metrics={"a": samples(text)})) if line.about == "extender"
    ]
    assert verdicts == [Level.WRONG]


def test_many_names_are_cut():
    (found,) = (line for line in lines(many(40, leases=[])) if line.about == "map")
    assert found.level is Level.FINE
    lost = replace(many(40), map_configmaps=the_map("leaf-1 spine-1 n0\n"))
    (found,) = (line for line in lines(lost) if line.about == "map")
    assert found.text.endswith("n1, n2, n3, n4, n5 and 34 more")


@pytest.mark.parametrize(
    "deployments",
    [
        pytest.param(
            [deployment("controller", args=["--kinds", "MSJob,PyTorchJob"])], id="kinds as a word of their own"
        ),
        pytest.param([deployment("controller", args=["--kinds=PyTorchJob"])] * 2, id="two Deployments of ours"),
    ],
)
def test_a_kind_with_two_controllers_has_one_line(deployments):
    found = lines(replace(FINE, deployments=deployments, other_deployments=[("kubeflow", "training-operator")]))
    assert [line.text for line in found if line.about == "controllers"] == [
        "PyTorchJobs have two controllers: ours, and training-operator in kubeflow"
    ]


@pytest.mark.parametrize(
    ("heartbeats", "texts"),
    [
        pytest.param([{"metadata": {"name": "n1"}, "spec": {}}], [], id="a heartbeat without a time"),
        pytest.param([lease("n1")], ["the clock of 1 node agrees"], id="one node"),
    ],
)
def test_clocks_agree_only_if_they_are_known(heartbeats, texts):
    assert [line.text for line in lines(replace(FINE, heartbeats=heartbeats)) if line.about == "clocks"] == texts

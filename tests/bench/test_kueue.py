"""Kueue beside our gates: whether it runs, its words, and how its figures are put beside ours."""

import math
import os

import pytest
import yaml

from hack.bench.placement import streams
from hack.bench.scheduler import kueue, kueue_beside, kueue_objects
from hack.bench.scheduler.kueue import KueueRelease, MissingKueue
from hack.bench.scheduler.stream import StreamCell, StreamResult
from tests.kit.not_run import PREFIX


def hook(name="mpod.kb.io"):
    """A webhook of a release, which its Service answers on the usual port."""
    service = {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/mutate--v1-pod"}
    return {"name": name, "failurePolicy": "Fail", "clientConfig": {"service": service}}


def body(kind, name, **more):
    """An object of a release."""
    return {"kind": kind, "metadata": {"name": name}, **more}


SHIPPED = {"leaderElection": {"leaderElect": True}, "controller": {"groupKindConcurrency": {"Pod": 5}}}
SETTINGS = body("ConfigMap", "kueue-manager-config", data={"controller_manager_config.yaml": yaml.safe_dump(SHIPPED)})
RELEASE = [
    body("MutatingWebhookConfiguration", "kueue-mutating-webhook-configuration", webhooks=[hook()]),
    body("ClusterRole", "kueue-manager-role"),
    body("Service", "kueue-visibility-server", spec={"ports": [{"port": 443}]}),
    body("Service", "kueue-webhook-service", spec={"ports": [{"port": 443}], "selector": {"app": "kueue"}}),
    body("CustomResourceDefinition", "topologies.kueue.x-k8s.io", spec={"scope": "Cluster"}),
    body(
        "CustomResourceDefinition",
        "workloads.kueue.x-k8s.io",
        spec={"conversion": {"strategy": "Webhook", "webhook": {**hook(), "conversionReviewVersions": ["v1"]}}},
    ),
    body("Deployment", "kueue-controller-manager"),
    body("APIService", "v1beta2.visibility.kueue.x-k8s.io"),
    body("Secret", "kueue-webhook-server-cert"),
    body("Namespace", "kueue-system"),
    SETTINGS,
]


def sent(*crossings, failed=0, bound_s=()):
    """Build what one seed gave."""
    return StreamResult(crossings=list(crossings), bound_s=list(bound_s), failed_gangs=failed, patches=8, pods=4)


def cell(way, distance_s, *of_seeds, kubernetes="1.35.4"):
    """A cell of the benchmark's table."""
    return StreamCell(way, distance_s, kubernetes, of_seeds)


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        pytest.param(None, "TURNOUT_PEERS names no folder with kueue-manager", id="nobody names a folder"),
        pytest.param([], "{} has no kueue-manager and no kueue-manifests.yaml", id="a folder of other peers"),
        pytest.param(["kueue-manager"], "{} has no kueue-manifests.yaml", id="a manager without its manifests"),
        pytest.param(["kueue-manager", "kueue-manifests.yaml"], None, id="both are there"),
    ],
)
def test_kueue_is_looked_for_in_the_folder_that_turnout_peers_names(files, reason, tmp_path):
    for name in files or ():
        (tmp_path / name).touch()
    found = kueue.find({} if files is None else {"TURNOUT_PEERS": str(tmp_path)})
    if reason is None:
        assert found == KueueRelease(tmp_path / "kueue-manager", tmp_path / "kueue-manifests.yaml")
    else:
        assert found == MissingKueue(reason.format(tmp_path))


def test_without_turnout_peers_one_line_says_not_run():
    found = kueue_beside.run({}, [cell("gates", "together", sent(1))], (1,), 1)
    assert found.notes == ["Kueue's manager is not run: TURNOUT_PEERS names no folder with kueue-manager."]
    assert (found.tables, found.figures) == ((), {})


def test_of_a_release_only_what_a_manager_outside_needs_is_installed():
    found = kueue_objects.objects_of_release(RELEASE, 12_345)
    assert [(each["kind"], each["metadata"]["name"]) for each in found] == [
        ("Namespace", "kueue-system"),
        ("Secret", "kueue-webhook-server-cert"),
        ("CustomResourceDefinition", "topologies.kueue.x-k8s.io"),
        ("CustomResourceDefinition", "workloads.kueue.x-k8s.io"),
        ("Service", "kueue-webhook-service"),
        ("MutatingWebhookConfiguration", "kueue-mutating-webhook-configuration"),
    ]


def test_every_webhook_is_asked_at_the_port_of_the_manager():
    found = {each["metadata"]["name"]: each for each in kueue_objects.objects_of_release(RELEASE, 12_345)}
    crd, hooks = found["workloads.kueue.x-k8s.io"], found["kueue-mutating-webhook-configuration"]
    webhooks = [crd["spec"]["conversion"]["webhook"], *hooks["webhooks"]]
    assert [each["clientConfig"]["service"]["port"] for each in webhooks] == [12_345, 12_345]
    assert hooks["webhooks"][0]["failurePolicy"] == "Fail"
    # Without a selector: no controller of endpoints looks for pods behind it.
    assert found["kueue-webhook-service"]["spec"] == {"ports": [{"port": 12_345}]}


def test_settings_are_those_shipped_but_for_where_the_manager_runs():
    found = kueue_objects.settings(RELEASE, "127.96.0.7", 12_345, "127.0.0.1:8081", "/certificates")
    assert found["controller"] == SHIPPED["controller"]
    assert found["webhook"] == {"host": "127.96.0.7", "port": 12_345, "certDir": "/certificates"}
    assert found["integrations"] == {"frameworks": ["pod"]}
    assert found["leaderElection"] == {"leaderElect": False}


def test_a_gang_of_kueue_is_a_pod_group_that_prefers_one_rack():
    found = kueue_objects.gang_pod("gang-3", 5, 8)
    assert found["metadata"]["name"] == "gang-3-5"
    assert found["metadata"]["labels"] == {
        "gang": "gang-3",
        "rank": "5",
        "kueue.x-k8s.io/queue-name": "gangs",
        "kueue.x-k8s.io/pod-group-name": "gang-3",
    }
    assert found["metadata"]["annotations"] == {
        "kueue.x-k8s.io/pod-group-total-count": "8",
        "kueue.x-k8s.io/pod-group-pod-index-label": "rank",
        "kueue.x-k8s.io/podset-preferred-topology": "example.com/rack",
    }
    assert "schedulingGates" not in found["spec"]  # Kueue's webhook puts its own


def test_every_host_carries_its_spine_and_leaf_and_the_label_of_the_flavor():
    tree = streams.fabric()
    labels_by_host = [kueue_objects.node_labels(tree, host) for host in tree.hosts]
    racks = {(each["example.com/block"], each["example.com/rack"]) for each in labels_by_host}
    assert len(racks) == 16
    (flavor,) = (
        raw_object["spec"] for _, raw_object in kueue_objects.queues(8) if raw_object["kind"] == "ResourceFlavor"
    )
    assert all(each.items() >= flavor["nodeLabels"].items() for each in labels_by_host)


@pytest.mark.parametrize(
    ("events", "pods"),
    [
        pytest.param([4, 8], 0, id="nobody leaves"),
        pytest.param([4, 8, -1, 2, 0], 12, id="the second gang leaves, then the first"),
    ],
)
def test_patches_by_which_the_benchmark_ends_pods_are_counted_out(events, pods):
    assert kueue_objects.count_departed_pods(events) == pods


@pytest.mark.parametrize(
    ("log", "version"),
    [
        pytest.param('{"msg":"Initializing","gitVersion":"v0.16.9"}', "v0.16.9", id="as a release says it"),
        pytest.param("", "of an unknown version", id="a log that says nothing"),
    ],
)
def test_the_version_of_the_manager_is_read_from_its_log(log, version):
    assert kueue.version(log) == version


OURS = [
    cell("default", "together", sent(14), sent(15), sent(99)),
    cell("gates", "together", sent(1), sent(2), sent(99)),
    cell("gates", "20 ms apart", sent(3), sent(4), sent(99)),
    cell("gates", "together", sent(50), sent(50), kubernetes="1.37.2"),
]
PEERS = [
    cell("kueue", "together", sent(1, 2, bound_s=(1.1, 1.3)), sent(3, failed=1, bound_s=(1.2,))),
    cell("kueue", "20 ms apart", sent(2), sent(2)),
]


def test_ours_stands_beside_over_the_same_seeds_and_the_same_scheduler():
    found = kueue_beside.cells_beside(OURS, PEERS)
    assert [(each.way, each.spacing, each.crossings) for each in found] == [
        ("default", "together", 14.5),
        ("gates", "together", 1.5),
        ("kueue", "together", 2.0),
        ("gates", "20 ms apart", 3.5),
        ("kueue", "20 ms apart", 2.0),
    ]


def test_the_table_shows_each_seed_and_the_version_of_kueue():
    found = kueue_beside.table("v0.16.9", [1, 1.5], kueue_beside.cells_beside(OURS, PEERS), 40)
    assert found.title == "Kueue beside: 40 gangs a seed, 2 seeds, 128 nodes"
    assert found.texts()[0] == ["best fit in memory", "1.250", "1.000 1.500", "-", "-", "-", "-"]
    assert found.texts()[3] == ["together, Kueue v0.16.9", "2.000", "1.500 3.000", "1", "1.200", "1.300", "2.00"]
    assert found.figures()["Kueue beside, 2 seeds: 20 ms apart, gates: crossings a gang"] == 3.5


def test_a_seed_whose_gangs_all_failed_has_no_crossings():
    assert math.isnan(cell("kueue", "together", sent(failed=40)).crossings)


@pytest.mark.real
@pytest.mark.peers
@pytest.mark.long
@pytest.mark.asyncio
async def test_kueue_places_gangs_whole_and_their_room_is_free_again():
    peer = kueue.find(os.environ)
    if isinstance(peer, MissingKueue):
        pytest.skip(PREFIX + peer.reason)
    version, found = await kueue.send(peer, [120, 0, 120], 1, 0.0)
    assert found.failed_gangs == 0
    assert [len(set(hosts)) for hosts in found.hosts] == [120, 120]
    assert version.startswith("v")

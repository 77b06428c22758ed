"""The things that a container gets: variables, fields, files and names."""

import pytest

from turnout.simulator.processes.container_spec import (
    CannotStart,
    Sources,
    expand_variables,
    from_field,
    from_resource,
    launch_of,
)
from turnout.simulator.processes.pod_dns import hosts, pod_address
from turnout.simulator.processes.volumes import File, TokenFile, Volume, volume_of, wanted_objects

POD = {
    "metadata": {
        "name": "a",
        "namespace": "ns",
        "uid": "u",
        "labels": {"b": "2", "a": 'x"y'},
        "annotations": {"t/k": "v"},
    },
    "spec": {
        "nodeName": "n1",
        "containers": [{"name": "m", "resources": {"limits": {"cpu": "1500m", "memory": "64Mi"}}}],
    },
    "status": {"podIP": "127.130.0.1", "hostIP": "10.0.0.1"},
}
(MAIN,) = POD["spec"]["containers"]
SOURCES = Sources(
    {"c": {"data": {"k": "v"}}},
    {"s": {"kind": "Secret", "data": {"k": "cw=="}}, "bad": {"kind": "Secret", "data": {"k": "x"}}},
    {"host": {"spec": {"hostPath": {"path": "/code"}}}, "nfs": {"spec": {"nfs": {"server": "10.0.0.9", "path": "/"}}}},
)


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$(A)b", "1b"),
        ("$$(A)", "$(A)"),
        ("$(NONE)", "$(NONE)"),
        ("$A $", "$A $"),
        ("$$$(A)", "$1"),
        ("$(A", "$(A"),
    ],
)
def test_words_are_put_in_as_kubernetes_does(text, expanded):
    assert expand_variables(text, {"A": "1"}) == expanded


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.name", "a"),
        ("metadata.labels['b']", "2"),
        ("metadata.annotations['t/k']", "v"),
        ("metadata.annotations['none']", ""),
        ("metadata.labels", 'a="x\\"y"\nb="2"'),
        ("spec.nodeName", "n1"),
        ("spec.serviceAccountName", "default"),
        ("status.podIP", "127.130.0.1"),
        ("status.hostIP", "10.0.0.1"),
    ],
)
def test_a_field_is_read(path, value):
    assert from_field(POD, path) == value


@pytest.mark.parametrize(
    ("resource", "divisor", "value"),
    [
        ("limits.cpu", "0", "2"),
        ("limits.cpu", "1m", "1500"),
        ("limits.memory", "1Mi", "64"),
        ("requests.cpu", "1", "0"),
    ],
)
def test_a_resource_is_told_in_whole_units_rounded_up(resource, divisor, value):
    assert from_resource(POD, MAIN, {"resource": resource, "divisor": divisor}) == value


def test_an_environment_is_built_in_order():
    container = {
        "name": "m",
        "command": ["run", "$(K)"],
        "args": ["$(P_k)"],
        "envFrom": [{"prefix": "P_", "configMapRef": {"name": "c"}}, {"secretRef": {"name": "none", "optional": True}}],
        "env": [
            {"name": "K", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "L", "value": "$(K)$(P_k)$(M)"},
            {"name": "M", "value": "late"},
            {"name": "N", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "none", "optional": True}}},
        ],
    }
    launch = launch_of(POD, container, {"PATH": "/bin"}, SOURCES)
    assert launch.argv == ("run", "s", "v")
    assert launch.env == {"PATH": "/bin", "P_k": "v", "K": "s", "L": "sv$(M)", "M": "late"}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "x", "key": "k"}}}]}, 'secret "x" not found'),
        ({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "x"}}}]}, "couldn't find key x"),
        ({"envFrom": [{"configMapRef": {"name": "x"}}]}, 'configmap "x" not found'),
        ({"envFrom": [{"secretRef": {"name": "bad"}}]}, "the value of 'k' is no base64"),
        ({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]}, "no field 'spec.x'"),
        ({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {}}}]}, "fileKeyRef, which is not done here"),
        ({"volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "../x"}]}, "leads out of its volume"),
    ],
)
def test_what_cannot_be_given_is_told(changed, why):
    with pytest.raises(CannotStart, match=why):
        launch_of(POD, {"name": "m", "command": ["x"], **changed}, {}, SOURCES)


def test_a_projected_volume_gathers_its_sources():
    sources = [
        {"configMap": {"name": "c", "items": [{"key": "k", "path": "conf/k"}]}},
        {"secret": {"name": "s"}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}},
    ]
    volume = volume_of(POD, {"name": "p", "projected": {"sources": sources, "defaultMode": 0o440}}, SOURCES)
    assert volume.files == {"conf/k": File(b"v", 0o440), "k": File(b"s", 0o440), "name": File(b"a", 0o440)}
    assert volume.tokens == {"token": TokenFile(600)}


@pytest.mark.parametrize(
    ("volume", "why"),
    [
        ({"nfs": {"server": "10.0.0.9", "path": "/"}}, "a volume of nfs is not done here"),
        ({"configMap": {"name": "c", "items": [{"key": "k", "path": "../k"}]}}, "leads out of its volume"),
        ({"configMap": {"name": "c", "items": [{"key": "x", "path": "x"}]}}, "has no key 'x'"),
        ({"secret": {"secretName": "x"}}, 'secret "x" not found'),
        ({"persistentVolumeClaim": {"claimName": "x"}}, 'persistentvolumeclaim "x" is not bound'),
        ({"persistentVolumeClaim": {"claimName": "nfs"}}, "neither hostPath nor local"),
    ],
)
def test_a_volume_that_cannot_be_had_is_told(volume, why):
    with pytest.raises(CannotStart, match=why):
        volume_of(POD, {"name": "v", **volume}, SOURCES)


def test_a_claim_leads_to_the_folder_of_its_volume():
    claim = {"name": "v", "persistentVolumeClaim": {"claimName": "host"}}
    assert volume_of(POD, claim, SOURCES) == Volume("v", host_path="/code")


def test_what_a_pod_refers_to_is_found_everywhere():
    volumes = [
        {"projected": {"sources": [{"secret": {"name": "s1"}}]}},
        {"configMap": {"name": "c1"}},
        {"emptyDir": {}},
        {"persistentVolumeClaim": {"claimName": "p1"}},
    ]
    env = [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}}, {"name": "B", "value": "x"}]
    init = {"name": "i", "envFrom": [{"configMapRef": {"name": "c2"}}]}
    spec = {"volumes": volumes, "containers": [{"name": "m", "env": env}], "initContainers": [init]}
    assert wanted_objects({"spec": spec}) == ({"c1", "c2"}, {"s1", "s2"}, {"p1"})


def test_addresses_differ_and_are_loopback():
    first = [pod_address(3, number) for number in range(600)]
    assert len(set(first)) == 600
    assert first[0] == "127.131.0.1"
    assert not any(each.endswith((".0", ".255")) for each in first)
    with pytest.raises(ValueError, match="no address"):
        pod_address(127, 0)


def peer(name, ip, ready="True", labels=None, namespace="ns", subdomain="ring"):
    return {
        "metadata": {"name": name, "namespace": namespace, "labels": labels or {"app": "ring"}},
        "spec": {"hostname": name, "subdomain": subdomain},
        "status": {"podIP": ip, "phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


def service(name="ring", unready=False, **spec):
    spec_fields = {"clusterIP": "None", "selector": {"app": "ring"}, "publishNotReadyAddresses": unready, **spec}
    return {"metadata": {"name": name, "namespace": "ns"}, "spec": spec_fields}


@pytest.mark.parametrize(
    ("pods", "services", "found"),
    [
        pytest.param(peer("b-1", "127.1.0.2"), [service()], True, id="a ready pod of a headless service"),
        pytest.param(peer("b-1", "127.1.0.2", "False"), [service()], False, id="not one that is not ready"),
        pytest.param(peer("b-1", "127.1.0.2", "False"), [service(unready=True)], True, id="unless the service says so"),
        pytest.param(peer("b-1", "127.1.0.2"), [], False, id="without a service nobody has a name"),
        pytest.param(peer("b-1", "127.1.0.2", labels={"app": "x"}), [service()], False, id="nor if it selects others"),
        pytest.param(peer("b-1", "127.1.0.2", subdomain="x"), [service()], False, id="nor with another subdomain"),
        pytest.param(peer("b-1", "127.1.0.2", namespace="o"), [service()], False, id="nor from another namespace"),
    ],
)
def test_a_peer_is_found_by_name(pods, services, found):
    text = hosts(peer("b-0", "127.1.0.1"), [pods], services)
    assert ("b-1.ring" in text.split()) is found
    assert text.splitlines()[2] == "127.1.0.1 b-0.ring.ns.svc.cluster.local b-0"


def test_a_service_leads_to_all_its_pods():
    text = hosts(peer("b-0", "127.1.0.1"), [peer(f"b-{n}", f"127.1.0.{n + 1}") for n in range(3)], [service()])
    assert sorted(line.split()[0] for line in text.splitlines() if "ring" in line.split()) == [
        "127.1.0.1",
        "127.1.0.2",
        "127.1.0.3",
    ]

"""Judges the state of an installation: a verdict for each requirement, with a remedy. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from turnout.kube.labels import GATES, GPU_RESOURCES
from turnout.kube.times import unix_s
from turnout.topology.map_formats import read_map
from turnout.topology.names import TEXT_KEY, YAML_KEY

OLDEST, NEWEST = (1, 29), (1, 37)  # versions of Kubernetes that are supported, and that were tested
MAX_CLOCK_SKEW_S = 5.0  # by which a clock may differ
SILENT_S = 120.0  # after which a node's heartbeat is late; a kubelet renews it each 10 s
CERTIFICATE_S = 14 * 86_400.0  # a certificate that expires earlier is DOUBTFUL
SAMPLED_FROM = 100  # nodes, above which kube-scheduler searches a part of them unless told otherwise
MAX_NAMED = 5  # objects that one line names
NAME, INSTANCE, VERSION = (f"app.kubernetes.io/{word}" for word in ("name", "instance", "version"))
# Controllers of others, by the name of their Deployment, and the kind that both would control.
OTHERS = {
    "training-operator": "PyTorchJob",
    "dlrover-controller-manager": "ElasticJob",
    "ms-operator-controller-manager": "MSJob",
    "volcano-controllers": "VolcanoJob",
}
_RENEW = "renew it: helm upgrade, cert-manager, or its Secret by hand"


def lines(facts: ClusterFacts) -> list[CheckLine]:
    """Return the lines of all checks, in the order of the steps of an installation."""
    parts: tuple[Callable[[ClusterFacts], Iterator[CheckLine]], ...] = (
        _rights,
        _failed,
        _kubernetes,
        _installed,
        _leaders,
        _map,
        placement_methods,
        _requests_answered,
        _nodes_offered,
        _certificate,
        _controllers,
        _check_clocks,
    )
    return [line for part in parts for line in part(facts)]


def _rights(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield an UNKNOWN line for each thing that the user may not read."""
    for what, why in facts.refused.items():
        remedy = "bind the ClusterRole turnout-viewer to yourself, and a right to get pods/proxy beside the extender"
        yield CheckLine(Level.UNKNOWN, "rights", f"{what} cannot be seen: {why}", remedy)


def _failed(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield an UNKNOWN line for each thing that the API server failed to return."""
    for what, why in facts.failed.items():
        yield CheckLine(Level.UNKNOWN, "api server", f"{what} cannot be read: {why}")


def _kubernetes(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line on the version of Kubernetes: WRONG if it is too old, DOUBTFUL if it is newer than tested ones.

    Nothing if the version has another form than v1.33.
    """
    if (match := re.match(r"v?(\d+)\.(\d+)", facts.server_version)) is None:
        return
    version = (int(match[1]), int(match[2]))
    text = f"Kubernetes {facts.server_version.removeprefix('v')}"
    if version < OLDEST:
        yield CheckLine(Level.WRONG, "kubernetes", f"{text} is older than 1.29", "upgrade the cluster")
    elif version > NEWEST:
        yield CheckLine(Level.DOUBTFUL, "kubernetes", f"{text}: 1.37 is the newest that was tried", "upgrade Turnout")
    else:
        yield CheckLine(Level.FINE, "kubernetes", text)


def _installed(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line for each Deployment of Turnout: whether it is ready, and of this version. WRONG if there is none.

    A Deployment with 0 replicas is DOUBTFUL: its program does not run. Nothing if the Deployments could not be read.
    """
    if facts.deployments is None:
        return
    if not facts.deployments:
        remedy = "helm upgrade --install turnout deploy/charts/turnout --namespace turnout-system --create-namespace"
        yield CheckLine(Level.WRONG, "installed", "no Deployment of Turnout is in the cluster", remedy)
    for each in facts.deployments:
        meta, replicas = each["metadata"], int(each.get("spec", {}).get("replicas", 1))
        ready = int(each.get("status", {}).get("readyReplicas", 0))
        text = f"{_component(each)} in {meta['namespace']}: {ready} of {replicas} ready"
        version = meta.get("labels", {}).get(VERSION, "")
        if not replicas:
            remedy = f"kubectl -n {meta['namespace']} scale deployment {meta['name']} --replicas=2"
            text = f"{_component(each)} in {meta['namespace']} is scaled to 0"
            yield CheckLine(Level.DOUBTFUL, "installed", text, remedy)
        elif ready < replicas:
            level = Level.WRONG if not ready else Level.DOUBTFUL
            yield CheckLine(
                level, "installed", text, f"kubectl -n {meta['namespace']} describe deployment {meta['name']}"
            )
        elif version and facts.own_version and version != facts.own_version:
            remedy = "install the same version of both: helm upgrade, or pip install"
            yield CheckLine(
                Level.DOUBTFUL,
                "installed",
                f"{text}, of version {version}; this program is {facts.own_version}",
                remedy,
            )
        else:
            yield CheckLine(Level.FINE, "installed", text)


def _leaders(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line for each Lease of Turnout: FINE if its holder renews it, else WRONG. Nothing if they may not be
    listed.
    """
    for lease in facts.leases or ():
        meta, spec = lease["metadata"], lease.get("spec") or {}
        renewed_s = unix_s(spec.get("renewTime"))
        within_s = float(spec.get("leaseDurationSeconds") or 15)
        if not spec.get("holderIdentity") or renewed_s is None:
            remedy = f"kubectl -n {meta['namespace']} get pods: none of its replicas leads"
            yield CheckLine(Level.WRONG, "leader", f"nobody holds the Lease {meta['name']}", remedy)
        elif (age_s := facts.now_s + (facts.server_clock_ahead_s or 0.0) - renewed_s) > 2 * within_s:
            text = f"the holder of the Lease {meta['name']} was last heard {age_s:.0f} s ago"
            yield CheckLine(Level.WRONG, "leader", text, f"kubectl -n {meta['namespace']} get pods, and their logs")
        else:
            yield CheckLine(Level.FINE, "leader", f"{meta['name']}: {spec['holderIdentity']}")


def _map(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield lines on each topology map: that there is none, its faults, that it is empty, or a comparison with the
    nodes.

    Maps that could not be read have no line. If the nodes may not be listed, there is nothing to compare.
    """
    for namespace, found in (facts.map_configmaps or {}).items():
        edit = f"kubectl -n {namespace} edit configmap node-topology-config"
        if found is None:
            text = f"there is no map in {namespace}: no node is preferred to another"
            yield CheckLine(Level.WRONG, "map", text, "docs/topology.md: write the ConfigMap node-topology-config")
            continue
        data = {key: text for key, text in (found.get("data") or {}).items() if key in (TEXT_KEY, YAML_KEY)}
        reading = read_map(data)
        if reading.faults:
            first = reading.faults[0]
            text = f"the map has {_count(len(reading.faults), 'fault')}, the first in line {first.line}: {first.text}"
            yield CheckLine(Level.WRONG, "map", text, edit)
        elif not reading.entries:
            yield CheckLine(
                Level.WRONG, "map", f"the map of {namespace} is empty: no node is preferred to another", edit
            )
        elif facts.nodes is not None:
            yield from _compare_with_map({entry.host for entry in reading.entries}, facts.nodes, edit)


def _compare_with_map(hosts: set[str], nodes: Sequence[Object], edit: str) -> Iterator[CheckLine]:
    """Yield lines for GPU nodes that are not on the map, and for hosts of the map that are no nodes.

    One DOUBTFUL line if no node has GPUs, and one FINE line if map and nodes agree. hosts: of the map, by name or
    address. edit: the remedy.
    """
    gpu_nodes = [node for node in nodes if _has_gpus(node)]
    if lost := [node["metadata"]["name"] for node in gpu_nodes if not _names_of(node) & hosts]:
        text = f"{len(lost)} of {_count(len(gpu_nodes), 'GPU node')} {_are(lost)} not on the map: {_some(lost)}"
        yield CheckLine(Level.WRONG if len(lost) == len(gpu_nodes) else Level.DOUBTFUL, "map", text, edit)
    if strange := sorted(hosts.difference(*map(_names_of, nodes))):
        are_none = "is no node" if len(strange) == 1 else "are no nodes"
        text = f"{_count(len(strange), 'host')} of the map {are_none} of this cluster: {_some(strange)}"
        yield CheckLine(Level.DOUBTFUL, "map", text, edit)
    if not gpu_nodes:
        yield _no_gpus(len(nodes))
    elif not lost and not strange:
        text = "the only GPU node is" if len(gpu_nodes) == 1 else f"all {len(gpu_nodes)} GPU nodes are"
        yield CheckLine(Level.FINE, "map", f"{text} on the map")


def _requests_answered(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line on whether kube-scheduler has called the extender, by the extender's metrics.

    Another line, UNKNOWN, names the pods whose metrics cannot be read. Nothing without extender pods.
    """
    request_count = sum(
        each.value
        for page in filter(None, facts.extender_metrics.values())
        for each in _samples(page, "turnout_extender_requests_total")
    )
    if silent := sorted(pod for pod, page in facts.extender_metrics.items() if page is None):
        remedy = "kubectl port-forward to port 9090 of each, and look for turnout_extender_requests_total"
        text = f"the API server does not show the metrics of {_some(silent)}"
        yield CheckLine(Level.UNKNOWN, "extender", text, remedy)
    if any(page is not None for page in facts.extender_metrics.values()):
        if request_count:
            yield CheckLine(Level.FINE, "extender", f"kube-scheduler has asked it {request_count:.0f} times")
        else:
            remedy = "put the block of its NOTES into kube-scheduler's configuration, or set scheduler.enabled=true"
            yield CheckLine(Level.WRONG, "extender", "it was never asked: no kube-scheduler has it registered", remedy)


def _nodes_offered(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line if kube-scheduler offers less than half of the nodes to the extender; nothing otherwise.

    Up to SAMPLED_FROM nodes, and before the extender's first answer, nothing is yielded. kube-scheduler's configuration
    cannot be read from the API server, so the extender's metrics are used.
    """
    nodes = len(facts.nodes or ())
    maximum = 0.0
    for page in filter(None, facts.extender_metrics.values()):
        buckets = _samples(page, "turnout_extender_answer_nodes_bucket")
        steps = sorted((float(labels["le"]), value) for _, labels, value in buckets if labels["verb"] == "prioritize")
        before = 0.0
        for bound, count in steps:
            if count > before:
                maximum = max(maximum, bound)
            before = count
    if nodes > SAMPLED_FROM and 0 < maximum < nodes / 2:
        text = f"kube-scheduler offers at most {maximum:.0f} of {nodes} nodes: hosts of one leaf are missing among them"
        yield CheckLine(Level.DOUBTFUL, "extender", text, "set percentageOfNodesToScore: 100 in its configuration")


def _certificate(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line on when the first certificate of an extender expires; nothing if no metrics page has its end."""
    ends = [
        each.value
        for page in filter(None, facts.extender_metrics.values())
        for each in _samples(page, "turnout_tls_certificate_expiry_timestamp_seconds")
    ]
    if ends:
        left_s = min(ends) - facts.now_s
        text = f"the extender's certificate is valid for {left_s / 86_400:.0f} more days"
        if left_s <= 0:
            yield CheckLine(
                Level.WRONG,
                "certificate",
                "the extender's certificate has ended",
                _RENEW,
            )
        elif left_s < CERTIFICATE_S:
            yield CheckLine(
                Level.DOUBTFUL,
                "certificate",
                text,
                f"{_RENEW}; no restart is needed",
            )
        else:
            yield CheckLine(Level.FINE, "certificate", text)


def _controllers(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line for each Deployment of another project that manages a kind of job that ours manage, too."""
    controllers = [each for each in facts.deployments or () if _component(each) == "controller"]
    kinds = {kind for each in controllers for kind in _kinds(each)}
    for namespace, name in facts.other_deployments:
        if (kind := OTHERS.get(name)) in kinds:
            text = f"{kind}s have two controllers: ours, and {name} in {namespace}"
            yield CheckLine(
                Level.WRONG, "controllers", text, f"take {kind} out of controller.kinds, or remove the other"
            )


def _check_clocks(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line if the API server's clock differs too much from this machine's, and lines on the nodes' clocks."""
    if facts.server_clock_ahead_s is not None and abs(facts.server_clock_ahead_s) > MAX_CLOCK_SKEW_S:
        way = "ahead of" if facts.server_clock_ahead_s > 0 else "behind"
        text = f"the API server's clock is {abs(facts.server_clock_ahead_s):.0f} s {way} this one"
        yield CheckLine(Level.DOUBTFUL, "clocks", text, "let chrony or ntpd keep both")
    yield from _node_clocks(facts)


def _node_clocks(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield a line for nodes whose heartbeats are ahead of the API server's clock, and one for nodes with late ones.

    If there is neither, yield one that all clocks agree; without a heartbeat that has a time, yield nothing.
    """
    now_s = facts.now_s + (facts.server_clock_ahead_s or 0.0)
    renewals = _renewals(facts.heartbeats or ())
    ahead = [name for name, renewed_s in renewals if renewed_s - now_s > MAX_CLOCK_SKEW_S]
    silent = [name for name, renewed_s in renewals if now_s - renewed_s > SILENT_S]
    if ahead:
        text = f"clocks of nodes are ahead: {_some(ahead)}"
        yield CheckLine(Level.DOUBTFUL, "clocks", text, "let chrony or ntpd keep them")
    if silent:
        text = f"heartbeats of nodes are late, or their clocks behind: {_some(silent)}"
        yield CheckLine(Level.DOUBTFUL, "clocks", text, "kubectl get nodes; then look at their clocks")
    if renewals and not ahead and not silent:
        yield _clocks_agree(len(renewals))


def _clocks_agree(nodes: int) -> CheckLine:
    """Return the line that all clocks agree. nodes: with a heartbeat, >= 1."""
    text = "the clock of 1 node agrees" if nodes == 1 else f"the clocks of {nodes} nodes agree"
    return CheckLine(Level.FINE, "clocks", text)


def _renewals(heartbeats: Iterable[Object]) -> list[tuple[str, float]]:
    """Return (name of the node, time of its heartbeat in seconds since 1970) for each heartbeat that has a time."""
    times = ((each["metadata"]["name"], unix_s((each.get("spec") or {}).get("renewTime"))) for each in heartbeats)
    return [(name, renewed_s) for name, renewed_s in times if renewed_s is not None]


def _names_of(node: Object) -> set[str]:
    """Return the name and the addresses of a node, by which a map may name it."""
    addresses = (node.get("status") or {}).get("addresses") or ()
    return {node["metadata"]["name"], *(each["address"] for each in addresses)}


def _component(deployment: Object) -> str:
    return str(deployment["metadata"].get("labels", {}).get(NAME, "")).removeprefix("turnout-")


def _kinds(deployment: Object) -> set[str]:
    """Return the kinds of --kinds=KIND,… or of --kinds KIND,…"""
    words = _words(deployment)
    lists = [word.removeprefix("--kinds=") for word in words if word.startswith("--kinds=")]
    lists += [kinds for flag, kinds in pairwise(words) if flag == "--kinds"]
    return {kind for kinds in lists for kind in kinds.split(",")}


def _no_gpus(nodes: int) -> CheckLine:
    """Return the line for a cluster without GPUs. nodes: how many it has."""
    text = f"none of {nodes} nodes offers GPUs" if nodes > 1 else "no node offers GPUs"
    return CheckLine(Level.DOUBTFUL, "nodes", text, "install the vendor's device plugin")


def _are(things: Sequence[object]) -> str:
    return "is" if len(things) == 1 else "are"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _has_gpus(node: Object) -> bool:
    room: Mapping[str, Any] = (node.get("status") or {}).get("allocatable") or {}
    return any(str(room.get(each, "0")) != "0" for each in GPU_RESOURCES)


def _some(names: list[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _samples(page: Sequence[MetricSample], name: str) -> list[MetricSample]:
    return [each for each in page if each.name == name]


_ABOUT = "way"
_UNUSED = None  # level of a method that is not used: FINE if another method is used, else DOUBTFUL
_FIRST = (1, 30)  # with gates and with policies that guard who nominates
_POLICY = (1, 36)  # that serves MutatingAdmissionPolicy without a flag


def placement_methods(facts: ClusterFacts) -> Iterator[CheckLine]:
    """Yield one line for each placement method: extender, nominations and gates.

    Nothing if no Deployment of Turnout is visible. A method that is not used is FINE if another one is used, else
    DOUBTFUL. A method that is installed and has no ready replica is WRONG.
    """
    if not facts.deployments:
        return
    found = [_extender(facts), _nominations(facts), _gates(facts)]
    used = any(line.level not in (_UNUSED, Level.WRONG) for line in found)
    for line in found:
        level = line.level or (Level.FINE if used else Level.DOUBTFUL)
        yield CheckLine(level, _ABOUT, line.text, line.remedy)


class _MethodVerdict(NamedTuple):
    """The verdict on one placement method."""

    # _UNUSED (None) for a method that is not used; it becomes FINE if another one is used, else DOUBTFUL.
    level: Level | None
    text: str
    remedy: str = ""


def _extender(facts: ClusterFacts) -> _MethodVerdict:
    """Return the verdict on the extender: used, not used, unknown, not installed, or without a ready replica.

    Unknown if its pods are seen and none of them gives metrics; not used if it is installed and no pods of it are seen.
    All verdicts but the first have a remedy.
    """
    deployments = [*_deployments_of(facts, "extender"), *_deployments_of(facts, "scheduler")]
    if (verdict := _not_ready("extender:", deployments)) is not None:
        return verdict
    if _sum(facts, "turnout_extender_requests_total"):
        return _MethodVerdict(Level.FINE, "extender: used, kube-scheduler asks it")
    cannot_list_pods = any(path.endswith("/pods") for path in (*facts.refused, *facts.failed))
    if (
        deployments
        and (facts.extender_metrics or cannot_list_pods)
        and all(page is None for page in facts.extender_metrics.values())
    ):
        return _MethodVerdict(
            Level.UNKNOWN, "extender: installed; whether it is asked cannot be seen", "see the lines above"
        )
    if deployments:
        remedy = "put the block of its NOTES into kube-scheduler's configuration; on a managed cluster use gates"
        return _MethodVerdict(_UNUSED, "extender: installed, not used", remedy)
    remedy = "where kube-scheduler can be configured: helm upgrade --set extender.enabled=true; else use gates"
    return _MethodVerdict(_UNUSED, "extender: not installed", remedy)


def _nominations(facts: ClusterFacts) -> _MethodVerdict:
    """Return the verdict on nominations: used, without a ready replica, or how to begin."""
    deployments = _deployments_of(facts, "nominator")
    if (verdict := _not_ready("nominations:", deployments)) is not None:
        return verdict
    if deployments:
        return _MethodVerdict(Level.FINE, "nominations: used, a nominator is installed")
    if _version(facts) < _FIRST:
        return _MethodVerdict(_UNUSED, "nominations: this cluster cannot use them", "upgrade it to Kubernetes 1.30")
    return _MethodVerdict(_UNUSED, "nominations: not used", "helm upgrade --set nominator.enabled=true")


def _gates(facts: ClusterFacts) -> _MethodVerdict:
    """Return the verdict on scheduling gates: who sets and lifts them, or how to begin."""
    gated = facts.methods.gated or 0
    if _version(facts) < _FIRST:
        return _MethodVerdict(_UNUSED, "gates: this cluster cannot use them", "upgrade it to Kubernetes 1.30")
    deployments = [each for each in _deployments_of(facts, "nominator") if "--gates" in _words(each)]
    if not deployments:
        if gated:
            text = f"gates: {gated} pods wait behind ours, and no nominator lifts them"
            return _MethodVerdict(
                Level.WRONG, text, "helm upgrade --set nominator.gates=true, or turnout release --all"
            )
        return _MethodVerdict(
            _UNUSED, f"gates: not used; {_installed_means(facts)}", "helm upgrade --set nominator.gates=true"
        )
    if (verdict := _not_ready(f"gates: {gated} pods wait; the nominator is", deployments)) is not None:
        return verdict
    admission = [*_policies(facts), *_webhooks(facts)]
    putters = [*admission, *(["our job controllers"] if _controllers_gate_pods(facts) else [])]
    text = f"gates: used; {gated} pods wait; put by {' and '.join(putters) or 'templates of pods alone'}"
    labelled = facts.methods.namespaces
    if admission and labelled == []:
        return _MethodVerdict(Level.DOUBTFUL, f"{text}, in no namespace", f"kubectl label namespace NAME {GATES}=true")
    if labelled and not admission and not facts.refused:
        detail = f"{text}; namespaces ask for them by a label that nothing obeys: {', '.join(labelled[:3])}"
        return _MethodVerdict(Level.DOUBTFUL, detail, "helm upgrade --set nominator.gatePods=true")
    return _MethodVerdict(Level.FINE, text)


def _controllers_gate_pods(facts: ClusterFacts) -> bool:
    return any("--gate-pods" in _words(each) for each in _deployments_of(facts, "controller"))


def _installed_means(facts: ClusterFacts) -> str:
    """Return in words what can set gates on pods in this cluster: a policy, or a webhook or templates."""
    if facts.methods.served or (_version(facts) >= _POLICY and facts.methods.served is None):
        return "a policy of this API server can put them on pods"
    return "this API server serves no MutatingAdmissionPolicy: a webhook, or templates of pods, put them there"


def _policies(facts: ClusterFacts) -> list[str]:
    return [f"the policy {each['metadata']['name']}" for each in facts.methods.policies or ()]


def _webhooks(facts: ClusterFacts) -> list[str]:
    return [f"the webhook {each['metadata']['name']}" for each in facts.methods.webhooks or ()]


def _version(facts: ClusterFacts) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", facts.server_version)
    return (int(match[1]), int(match[2])) if match else _POLICY


def _deployments_of(facts: ClusterFacts, component: str) -> list[Object]:
    name = f"turnout-{component}"
    labelled = [(each["metadata"].get("labels") or {}, each) for each in facts.deployments or ()]
    return [each for labels, each in labelled if labels.get("app.kubernetes.io/name") == name]


def _not_ready(subject: str, deployments: Sequence[Object]) -> _MethodVerdict | None:
    """Return the verdict on a method whose Deployments have no ready replica; None without Deployments, or if one has.

    subject: the beginning of the sentence. Deployments with 0 replicas are not used.
    """
    if not deployments or any((each.get("status") or {}).get("readyReplicas") for each in deployments):
        return None
    meta = deployments[0]["metadata"]
    if not any(int((each.get("spec") or {}).get("replicas", 1)) for each in deployments):
        remedy = f"kubectl -n {meta['namespace']} scale deployment {meta['name']} --replicas=2"
        return _MethodVerdict(_UNUSED, f"{subject} installed with 0 replicas", remedy)
    remedy = f"kubectl -n {meta['namespace']} describe deployment {meta['name']}"
    return _MethodVerdict(Level.WRONG, f"{subject} installed, no replica is ready", remedy)


def _words(deployment: Object) -> list[str]:
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [word for each in pod.get("containers") or () for word in each.get("args") or ()]


def _sum(facts: ClusterFacts, name: str) -> float:
    return sum(
        each.value for page in filter(None, facts.extender_metrics.values()) for each in page if each.name == name
    )


Object = Mapping[str, Any]


class Level(Enum):
    """The verdict of one line. WRONG makes `turnout check` end with NEGATIVE_RESULT; DOUBTFUL, a warning, does not."""

    FINE = "fine"
    UNKNOWN = "unknown"  # it could not be seen
    DOUBTFUL = "doubtful"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the result."""

    level: Level
    about: str  # the subject, as in "rights"
    text: str
    remedy: str = ""  # the next step, "" if none is needed


class MetricSample(NamedTuple):
    """A number of a program's metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MethodFacts:
    """The facts on the placement methods, beside Deployments. None: could not be read, or is not served."""

    served: bool | None = None  # does the API server have MutatingAdmissionPolicies?
    policies: Sequence[Object] | None = None  # those of ours
    webhooks: Sequence[Object] | None = None  # MutatingWebhookConfigurations of ours
    namespaces: Sequence[str] | None = None  # that ask for our gate by their label
    gated: int | None = None  # pods that wait behind it


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster as it was seen. None: it could not be seen; `refused` and `failed` say why, by API path."""

    own_version: str  # of this program
    now_s: float  # this machine's time, in seconds since 1970
    server_version: str = ""  # of the API server, as in "v1.33.1"
    server_clock_ahead_s: float | None = None  # by how many seconds the API server's clock is ahead of this machine's
    nodes: Sequence[Object] | None = None
    deployments: Sequence[Object] | None = None  # of Turnout
    other_deployments: Sequence[tuple[str, str]] = ()  # (namespace, name) of Deployments of other projects
    leases: Sequence[Object] | None = None  # of Turnout, in the namespaces of its Deployments
    heartbeats: Sequence[Object] | None = None  # the Leases that kubelets renew
    # By namespace with a Deployment of Turnout: the ConfigMap of the topology map, None if it does not exist. Maps that
    # could not be read are left out.
    map_configmaps: Mapping[str, Object | None] | None = None
    # By name of an extender's pod: its metrics, None if they could not be read. `refused` and `failed` do not say why.
    extender_metrics: Mapping[str, Sequence[MetricSample] | None] = field(default_factory=dict)
    methods: MethodFacts = field(default_factory=MethodFacts)
    refused: Mapping[str, str] = field(default_factory=dict)  # by API path: the message of a 403
    failed: Mapping[str, str] = field(default_factory=dict)  # by API path: status and message of another error

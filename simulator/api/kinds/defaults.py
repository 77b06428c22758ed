"""Fill in the API server's defaults at a creation, as far as our programs, kubectl and the schedulers read them."""

from __future__ import annotations

from typing import Any

from turnout.simulator.api.model import value_at

_NODE_INFO = (
    "architecture",
    "bootID",
    "containerRuntimeVersion",
    "kernelVersion",
    "kubeProxyVersion",
    "kubeletVersion",
    "machineID",
    "operatingSystem",
    "osImage",
    "systemUUID",
)


def pod_defaults(obj: dict[str, Any]) -> None:
    """Fill in a new pod, in place: absent fields of its spec, such as scheduler and priority, and a fresh status.

    Limits become the missing requests. A status that the pod has is replaced.
    """
    spec = obj.setdefault("spec", {})
    _fill_pod(spec)
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("priority", 0)
    if "tolerations" not in spec:
        spec["tolerations"] = [
            {"key": f"node.kubernetes.io/{why}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for why in ("not-ready", "unreachable")
        ]
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj["status"] = {"phase": "Pending", "qosClass": _qos_class(spec)}


def job_defaults(obj: dict[str, Any]) -> None:
    """Set a new Job's defaults as the API server does, in place: one completion, parallelism 1, six retries.

    With parallelism and no completions, the completions stay absent. Its pods get labels with its name and uid, and its
    selector chooses them, unless manualSelector is set. obj: with metadata.uid and name.
    """
    spec = obj.setdefault("spec", {})
    spec.setdefault("completionMode", "NonIndexed")
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    spec.setdefault("backoffLimit", 6)
    spec.setdefault("suspend", False)
    _fill_template(spec)
    if not spec.get("manualSelector"):
        uid, name = obj["metadata"]["uid"], obj["metadata"]["name"]
        marks = {"batch.kubernetes.io/controller-uid": uid}
        spec["selector"] = {"matchLabels": dict(marks)}
        pod_labels = {**marks, "controller-uid": uid, "batch.kubernetes.io/job-name": name, "job-name": name}
        template = spec.setdefault("template", {}).setdefault("metadata", {})
        template["labels"] = {**(template.get("labels") or {}), **pod_labels}


def replica_defaults(obj: dict[str, Any]) -> None:
    """Set the defaults of a set of pods, in place: one replica, and the defaults of its pod template."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    _fill_template(spec)


def _fill_template(spec: dict[str, Any]) -> None:
    """Set the defaults of the pod template in a spec, in place."""
    template = spec.get("template")
    if isinstance(template, dict) and isinstance(template.get("spec"), dict):
        _fill_pod(template["spec"])


def _fill_pod(spec: dict[str, Any]) -> None:
    """Set those absent fields of a pod spec that our programs and kubectl read, as the API server does, in place.

    Limits become missing requests.
    """
    for key, value in (
        ("schedulerName", "default-scheduler"),
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("dnsPolicy", "ClusterFirst"),
    ):
        spec.setdefault(key, value)
    spec.setdefault("securityContext", {})
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        if not isinstance(container, dict):
            continue
        resources = container.setdefault("resources", {})
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        image = str(container.get("image", ""))
        latest = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")


def _qos_class(spec: dict[str, Any]) -> str:
    """Return the QoS class of a pod spec: BestEffort, Burstable or Guaranteed, by the CPU and memory of containers."""
    amounts = [
        tuple(value_at(container, "resources", word, resource) for word in ("requests", "limits"))
        for container in spec.get("containers") or ()
        for resource in ("cpu", "memory")
    ]
    if all(request is None and limit is None for request, limit in amounts):
        return "BestEffort"
    is_guaranteed = all(limit is not None and request == limit for request, limit in amounts)
    return "Guaranteed" if is_guaranteed else "Burstable"


def namespace_defaults(obj: dict[str, Any]) -> None:
    """Change a namespace in place: its status is only the phase Active.

    Its name becomes the label kubernetes.io/metadata.name, and spec.finalizers is [kubernetes] if not set.
    """
    meta = obj["metadata"]
    meta["labels"] = {**(meta.get("labels") or {}), "kubernetes.io/metadata.name": meta["name"]}
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj["status"] = {"phase": "Active"}


def node_defaults(obj: dict[str, Any]) -> None:
    """Set the absent fields of a new node that Go always writes, in place: "" for texts, 0 for the kubelet's port."""
    obj.setdefault("spec", {})
    status = obj.setdefault("status", {})
    status.setdefault("daemonEndpoints", {"kubeletEndpoint": {"Port": 0}})
    info = status.setdefault("nodeInfo", {})
    for key in _NODE_INFO:
        info.setdefault(key, "")


def stateful_defaults(obj: dict[str, Any]) -> None:
    """Fill in a StatefulSet, in place: one replica, pods are created in order, and claims are kept. Its status
    becomes empty.
    """
    replica_defaults(obj)
    spec = obj["spec"]
    spec.setdefault("podManagementPolicy", "OrderedReady")
    spec.setdefault("updateStrategy", {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}})
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    obj["status"] = {"replicas": 0, "availableReplicas": 0}


def quota_defaults(obj: dict[str, Any]) -> None:
    """Replace the status of a new quota by an empty one, in place. The use is not written to it."""
    obj["status"] = {}


def definition_defaults(obj: dict[str, Any]) -> None:
    """Fill in the conversion of a CRD, and the names that follow from its kind, in place."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("conversion", {"strategy": "None"})
    names = spec.get("names")
    if isinstance(names, dict) and names.get("kind"):
        names.setdefault("singular", names["kind"].lower())
        names.setdefault("listKind", f"{names['kind']}List")

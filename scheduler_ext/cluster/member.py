"""One pod as the extender remembers it: a few fields instead of the whole object.

The memory of the extender must hold 20,000 pods, so fields that no decision needs are dropped.

The host rules of a pod are required anti-affinity and hard spread constraints by host name. They are read only where
their selector matches the pod itself, so that they keep members of one gang apart. The scheduler's plugins judge the
rules about other pods, and about other keys than the host name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from turnout.jobs.gang import Dialect, Membership, membership
from turnout.jobs.wishes.model import Mode
from turnout.kube import labels
from turnout.kube.errors import KubeError
from turnout.kube.objects import Pod
from turnout.kube.pod_shape import PodShape, Term, preferred_terms, shape_of
from turnout.scheduler_ext.wire.pod_messages import gates_of

_MAX_SELECTOR_CHARACTERS = 4096  # characters; a longer one is left to the scheduler
_MAX_TERMS = 16


def anti_affinity_ports(pod: Pod) -> tuple[tuple[str, int], ...]:
    """Return a pod's required anti-affinity to pods like itself as pseudo host ports, so that free room is counted
    correctly.

    One pair (text, 0) for each term by host name whose selector matches the pod itself, without duplicates, sorted; ()
    if there are none. Two pods with the same pair cannot share a host, as with a host port. Left out are terms after
    the first _MAX_TERMS, terms of more than _MAX_SELECTOR_CHARACTERS, and terms that may not be about the pod's own
    namespace.
    """
    affinity = pod.spec.affinity
    rules = (affinity.pod_anti_affinity if affinity else None) or {}
    found = set()
    for term in _dicts(rules.get("requiredDuringSchedulingIgnoredDuringExecution")):
        scope = _namespaces_of_term(term, pod.metadata.namespace)
        if term.get("topologyKey") == labels.HOSTNAME and scope and _selects(term.get("labelSelector"), pod):
            text = json.dumps([scope, term["labelSelector"]], sort_keys=True)
            if len(text) <= _MAX_SELECTOR_CHARACTERS:
                found.add((f"anti-affinity {text}", 0))
    return tuple(sorted(found))


def max_per_host(pod: Pod) -> int | None:
    """Return how many pods of its kind a host may hold while another host holds none; None for no limit.

    The smallest maxSkew of the hard spread constraints by host name whose selector matches the pod itself. Of the
    constraints only the first _MAX_TERMS are read, and an invalid maxSkew is ignored.
    """
    skews = [
        rule["maxSkew"]
        for rule in _dicts(pod.spec.topology_spread_constraints)
        if rule.get("topologyKey") == labels.HOSTNAME
        and rule.get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
        and isinstance(rule.get("maxSkew"), int)
        and rule["maxSkew"] > 0
        and _selects(rule.get("labelSelector"), pod)
    ]
    return min(skews, default=None)


def add_anti_affinity(shape: PodShape, pod: Pod) -> PodShape:
    """Return a shape with the pseudo host ports of `anti_affinity_ports` added; the shape itself if there are none.

    shape: of the pod, without its anti-affinity. Equal results are one shared object.
    """
    rules = anti_affinity_ports(pod)
    return _with_ports(shape, rules) if rules else shape


@lru_cache(maxsize=4096)
def _with_ports(shape: PodShape, ports: tuple[tuple[str, int], ...]) -> PodShape:
    """Return a shape with more host ports. Equal shapes become one object, as in turnout.kube.pod_shape."""
    return replace(shape, host_ports=(*shape.host_ports, *ports))


def _namespaces_of_term(term: Mapping[str, Any], namespace: str) -> object:
    """Return the namespaces that an affinity term is about: "all", or a sorted list that contains the pod's own.

    None if the pod's own namespace is not in the list, for a namespaceSelector with requirements, and for a list that
    is malformed: the term is not considered then. namespace: of the pod.
    """
    names, selector = term.get("namespaces") or [], term.get("namespaceSelector")
    if selector == {}:
        return "all"
    if selector is not None or not isinstance(names, list):
        return None
    if not names:
        return [namespace]
    return sorted(map(str, names)) if namespace in names else None


def _selects(selector: object, pod: Pod) -> bool:
    """Return True if a label selector can be read and matches the pod itself. None matches no pod."""
    if not isinstance(selector, dict):
        return False
    pod_labels = pod.metadata.labels or {}
    match_labels = selector.get("matchLabels") or {}
    if not isinstance(match_labels, dict) or any(pod_labels.get(key) != value for key, value in match_labels.items()):
        return False
    return all(_meets_expression(pod_labels, expression) for expression in _dicts(selector.get("matchExpressions")))


def _meets_expression(have: Mapping[str, str], expression: Mapping[str, Any]) -> bool:
    """Return True if labels meet a matchExpression. False for an operator that Kubernetes does not have.

    have: the pod's labels. expression: one entry of matchExpressions, as the API server accepts it.
    """
    value, values = have.get(str(expression.get("key"))), expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    return False


def _dicts(items: object) -> Iterator[dict[str, Any]]:
    return (each for each in items[:_MAX_TERMS] if isinstance(each, dict)) if isinstance(items, list) else iter(())


_FINISHED = ("Succeeded", "Failed")


# Kinds of volume that any node can mount; "name" is every volume's own.
_FREE_VOLUMES = {"name", "configMap", "secret", "projected", "emptyDir", "downwardAPI", "hostPath", "nfs", "image"}


class Controller(NamedTuple):
    """The object that owns a pod, by its controller reference."""

    api_version: str
    kind: str
    name: str
    uid: str


MAX_NAME_CHARACTERS = 253  # characters; an API server bounds no field of an owner reference, and tenants write them


_controller = lru_cache(maxsize=4_096)(Controller)  # the pods of one job share one value


@dataclass(frozen=True, slots=True)
class GangMember:
    """A pod: its place, the resources that it takes, and the gang that it belongs to."""

    uid: str
    namespace: str
    name: str
    node: str  # where it is bound; "" while it waits
    nominated: str  # status.nominatedNodeName
    nominated_by_us: bool  # True if our nominator wrote `nominated`
    shape: PodShape
    gpus: int  # the accelerators that it requests
    priority: int
    created: str  # RFC 3339, which sorts as text
    scheduler: str
    terminating: bool
    gated: bool
    has_only_our_gate: bool  # True if our placement gate is the only one
    membership: Membership
    no_opinion_reason: str = ""  # why the extender has no opinion on this pod; "" when it has one
    nomination_obstacle: str = ""  # why the pod must not be nominated, though it may be placed; "" when it may be
    preferred_terms: tuple[tuple[int, Term], ...] = ()  # its soft node affinity
    never_preempts: bool = False  # no pod may be evicted for it
    max_per_host: int | None = None  # by its hard spread constraints, while another host has none
    controller: Controller | None = None

    @property
    def is_waiting(self) -> bool:
        """True if the pod waits for a node: neither bound nor being deleted."""
        return not self.node and not self.terminating

    def differs_only_in_place(self, other: GangMember) -> bool:
        """Return True if this is the same pod on the same terms: only its node and its nomination may be others."""
        at_own_place = replace(other, node=self.node, nominated=self.nominated, nominated_by_us=self.nominated_by_us)
        return at_own_place == self


def member_of(pod: Pod, gpu_resources: tuple[str, ...] = labels.GPU_RESOURCES) -> GangMember | None:
    """Read a pod; None if it is finished (Succeeded or Failed) and takes no room.

    gpu_resources: names of the resources that count as a GPU. Raises BadQuantity or TooComplex if the pod's requests or
    affinity cannot be read. Bad gang annotations raise nothing: they are in `membership.faults`.
    """
    if pod.status.phase in _FINISHED:
        return None
    shape = add_anti_affinity(shape_of(pod), pod)
    belongs = membership(pod)
    return GangMember(
        uid=pod.metadata.uid,
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        node=pod.spec.node_name,
        nominated=pod.status.nominated_node_name,
        nominated_by_us=bool(pod.status.nominated_node_name) and _nominated_by_us(pod),
        shape=shape,
        gpus=shape.gpus(gpu_resources),
        priority=pod.spec.priority or 0,
        created=pod.metadata.creation_timestamp or "",
        scheduler=pod.spec.scheduler_name,
        terminating=pod.metadata.deletion_timestamp is not None,
        gated=bool(pod.spec.scheduling_gates),
        has_only_our_gate=bool(pod.spec.scheduling_gates) and gates_of(pod) == {labels.PLACEMENT_GATE},
        membership=belongs,
        no_opinion_reason=_no_opinion_reason(pod, shape, belongs, gpu_resources),
        nomination_obstacle=_nomination_obstacle(pod),
        preferred_terms=preferred_terms(pod),
        never_preempts=pod.spec.preemption_policy == "Never",
        max_per_host=max_per_host(pod),
        controller=_controller_of(pod),
    )


def _controller_of(pod: Pod) -> Controller | None:
    """Return the controller of a pod, an object that equal controllers share.

    None if the pod has none, or if a field of the reference is longer than MAX_NAME_CHARACTERS.
    """
    owner = next((each for each in pod.metadata.owner_references or () if each.controller), None)
    if owner is None:
        return None
    fields = owner.api_version, owner.kind, owner.name, owner.uid
    return _controller(*fields) if all(len(field) <= MAX_NAME_CHARACTERS for field in fields) else None


def error_text(error: KubeError) -> str:
    """Return the first 200 characters of the message of an error, for a log line or an Event."""
    return str(error)[:200]


def _no_opinion_reason(pod: Pod, shape: PodShape, belongs: Membership, gpu_resources: tuple[str, ...]) -> str:
    """Return why the planner has no opinion about a pod, as a metric label; "" if it has one.

    belongs: the gang and wish that the pod states. shape: of the pod. gpu_resources: names of the resources that count
    as a GPU.
    """
    if _has_claims(pod) and not shape.gpus(gpu_resources):
        return "ResourceClaims"  # the node object does not show the devices of a claim
    pod_level = (pod.spec.resources and (pod.spec.resources.requests or pod.spec.resources.limits)) or {}
    if any(name in gpu_resources for name in pod_level):
        return "PodLevelGpus"
    plain = belongs.key.dialect in (Dialect.ALONE.value, Dialect.OWNER.value)
    if plain and not shape.gpus(gpu_resources) and not belongs.wish.source:
        return "NoGpu"  # a database's StatefulSet is no gang: no room is reserved for its pods
    if belongs.wish.mode is Mode.NONE:
        return "LeftAlone"  # it requests no place; a hard level of its gang still counts
    return ""


def _has_claims(pod: Pod) -> bool:
    return bool(pod.spec.resource_claims or any(c.resources and c.resources.claims for c in pod.spec.containers))


def _nomination_obstacle(pod: Pod) -> str:
    """Return why only the scheduler's plugins can judge where this pod fits, as a metric label; "" if we can.

    Pod affinity, volumes that not every node can mount, and resource claims are such reasons.
    """
    affinity = pod.spec.affinity
    if affinity and (affinity.pod_affinity or affinity.pod_anti_affinity):
        return "PodAffinity"
    if any(set(volume) - _FREE_VOLUMES for volume in pod.spec.volumes or ()):
        return "Volumes"
    return "ResourceClaims" if _has_claims(pod) else ""


def _nominated_by_us(pod: Pod) -> bool:
    """Return True if our nominator alone owns status.nominatedNodeName, by the pod's managedFields.

    Entries that cannot be decoded are ignored.
    """
    owners = set()
    for entry in pod.metadata.managed_fields or ():
        if b"f:nominatedNodeName" not in bytes(entry.fields_v1):
            continue
        try:
            owned = msgspec.json.decode(entry.fields_v1)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        status = owned.get("f:status") if isinstance(owned, dict) else None
        if isinstance(status, dict) and "f:nominatedNodeName" in status:
            owners.add(entry.manager)
    return owners == {labels.FIELD_MANAGER_NOMINATOR}

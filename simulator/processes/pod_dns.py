"""Who can be found by which name: the hosts file of a pod, and the loopback addresses that pods get.

Source: Kubernetes' DNS for Services and Pods: a pod is HOSTNAME.SUBDOMAIN.NAMESPACE.svc.cluster.local when a headless
Service of its subdomain's name stands in its namespace; a Service's name leads to all its ready pods.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
_DOMAIN = "svc.cluster.local"


def address(block: int, number: int) -> str:
    """The loopback address of pod number `number` (from 0) of a kubelet. block: 0..126, so that kubelets differ.

    Raises ValueError past the 64,000 or so of a block.
    """
    last = 1 + number % 254  # no .0 and no .255, which some programs take for a network
    middle = number // 254
    if not 0 <= block <= 126 or middle > 255:
        raise ValueError(f"there is no address {number} in block {block}")
    return str(ipaddress.IPv4Address((127 << 24) | ((block + 128) << 16) | (middle << 8) | last))


def hostname(pod: Object) -> str:
    """What a pod calls itself: at most 63 characters, as the kernel and Kubernetes have it."""
    name = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return str(name)[:63].rstrip("-.")


def hosts(pod: Object, pods: Iterable[Object], services: Iterable[Object]) -> str:
    """The hosts file of a pod. pods, services: all that there are, of any namespace."""
    own = (pod.get("status") or {}).get("podIP") or ""
    namespace = pod["metadata"]["namespace"]
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    subdomain = pod["spec"].get("subdomain")
    full = [f"{hostname(pod)}.{subdomain}.{namespace}.{_DOMAIN}"] if subdomain else []
    if own:
        lines.append(" ".join([own, *full, hostname(pod)]))
    lines += sorted(_lines(namespace, list(pods), services))
    return "\n".join(lines) + "\n"


def _lines(namespace: str, pods: list[Object], services: Iterable[Object]) -> Iterator[str]:
    for service in services:
        spec, where = service.get("spec") or {}, service["metadata"]["namespace"]
        selector = spec.get("selector") or {}
        headless = spec.get("clusterIP") == "None"
        chosen = [pod for pod in pods if selector and _is_chosen(pod, where, selector)]
        name = service["metadata"]["name"]
        for pod in chosen:
            if not _is_shown(pod, bool(spec.get("publishNotReadyAddresses"))):
                continue
            ip = pod["status"]["podIP"]
            yield " ".join([ip, *_known_as(name, where, namespace)])
            if headless and pod["spec"].get("subdomain") == name:
                yield " ".join([ip, *_known_as(f"{hostname(pod)}.{name}", where, namespace)])


def _is_chosen(pod: Object, namespace: str, selector: Mapping[str, str]) -> bool:
    labels = pod["metadata"].get("labels") or {}
    return pod["metadata"]["namespace"] == namespace and selector.items() <= labels.items()


def _is_shown(pod: Object, unready_too: bool) -> bool:
    status = pod.get("status") or {}
    if not status.get("podIP") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    return ready or unready_too


def _known_as(name: str, where: str, seen_from: str) -> list[str]:
    """The names under which the search list of a pod finds it."""
    short = [name] if where == seen_from else []
    return [f"{name}.{where}.{_DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}", *short]

"""Give pods names and addresses: the hosts file of a pod, and loopback addresses.

Kubernetes' rules hold: a pod is HOSTNAME.SUBDOMAIN.NAMESPACE.svc.cluster.local when its namespace has a headless
Service of the subdomain's name. A Service's name leads to all its ready pods. Source: Kubernetes' DNS for Services and
Pods.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Object = Mapping[str, Any]
_DOMAIN = "svc.cluster.local"


def pod_address(kubelet: int, number: int) -> str:
    """Return the loopback address of pod `number`, counted from 0, of a kubelet.

    kubelet: number of its block of addresses, 0..126, different for each kubelet. Raises ValueError for a number beyond
    the 65,024 addresses of a block (254 * 256), and for a block out of range.
    """
    last = 1 + number % 254  # no .0 and no .255, which some programs take for a network
    middle = number // 254
    if not 0 <= kubelet <= 126 or middle > 255:
        raise ValueError(f"there is no address {number} in block {kubelet}")
    return str(ipaddress.IPv4Address((127 << 24) | ((kubelet + 128) << 16) | (middle << 8) | last))


def hostname(pod: Object) -> str:
    """Return a pod's host name: at most 63 characters, as the kernel and Kubernetes require."""
    name = pod["spec"].get("hostname") or pod["metadata"]["name"]
    return str(name)[:63].rstrip("-.")


def hosts(pod: Object, pods: Iterable[Object], services: Iterable[Object]) -> str:
    """Return the text of the hosts file of a pod: itself, and the pods behind Services.

    pod: whose file it is; without a podIP in its status it has no line of its own. pods, services: all that exist, of
    any namespace. A malformed Service is skipped.
    """
    own = (pod.get("status") or {}).get("podIP") or ""
    namespace = pod["metadata"]["namespace"]
    lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost ip6-loopback"]
    subdomain = pod["spec"].get("subdomain")
    full = [f"{hostname(pod)}.{subdomain}.{namespace}.{_DOMAIN}"] if subdomain else []
    if own:
        lines.append(" ".join([own, *full, hostname(pod)]))
    lines += sorted(_service_lines(namespace, list(pods), services))
    return "\n".join(lines) + "\n"


def _service_lines(namespace: str, pods: list[Object], services: Iterable[Object]) -> Iterator[str]:
    """Yield the lines of /etc/hosts for all Services, as a pod in `namespace` finds them.

    pods: of any namespace. A malformed Service is skipped, and so is one with a malformed pod.
    """
    for service in services:
        try:
            yield from list(_hosts_lines(service, namespace, pods))
        except (TypeError, AttributeError, KeyError):
            continue  # it, or a pod of its namespace, is malformed: other names are found all the same


def _hosts_lines(service: Object, namespace: str, pods: Iterable[Object]) -> Iterator[str]:
    """Yield the lines of /etc/hosts for each pod behind a Service, with the names by which a pod in `namespace` may
    call it.

    A pod that belongs to a headless Service by its subdomain has a second line with its own names. Pods that are not
    ready are left out, unless the Service publishes them. A Service without a selector has no lines. pods: of any
    namespace.
    """
    spec, where = service.get("spec") or {}, service["metadata"]["namespace"]
    selector = spec.get("selector") or {}
    headless = spec.get("clusterIP") == "None"
    name = service["metadata"]["name"]
    for pod in pods:
        if not selector or not _is_chosen(pod, where, selector):
            continue
        if not _is_shown(pod, bool(spec.get("publishNotReadyAddresses"))):
            continue
        ip = pod["status"]["podIP"]
        yield " ".join([ip, *_known_as(name, where, namespace)])
        if headless and pod["spec"].get("subdomain") == name:
            yield " ".join([ip, *_known_as(f"{hostname(pod)}.{name}", where, namespace)])


def _is_chosen(pod: Object, namespace: str, selector: Mapping[str, str]) -> bool:
    """Return True if a pod is in a namespace and has the labels of a Service's selector."""
    labels = pod["metadata"].get("labels") or {}
    return pod["metadata"]["namespace"] == namespace and selector.items() <= labels.items()


def _is_shown(pod: Object, unready_too: bool) -> bool:
    """Return True if DNS publishes a pod: it has an address and has not ended.

    unready_too: also pods that are not ready.
    """
    status = pod.get("status") or {}
    if not status.get("podIP") or status.get("phase") in ("Succeeded", "Failed"):
        return False
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())
    return ready or unready_too


def _known_as(name: str, where: str, seen_from: str) -> list[str]:
    """Return the names under which a pod's search list finds a name, the longest first.

    name: of a Service or of a pod of a Service. where: its namespace. seen_from: the namespace of the pod that asks.
    """
    short = [name] if where == seen_from else []
    return [f"{name}.{where}.{_DOMAIN}", f"{name}.{where}.svc", f"{name}.{where}", *short]

"""Read a container's readiness probe, and judge its answers. Only httpGet is done; others count as always answered.

Source: Kubernetes' document on probes; a probe of a named port asks that port of the container.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReadinessProbe:
    """An HTTP request, and how often it is made, in seconds. host: "" for the pod's own address."""

    scheme: str
    host: str
    port: int
    path: str
    delay_s: float
    period_s: float
    timeout_s: float
    successes: int  # in a row, after which it is ready
    failures: int  # in a row, after which it is no longer

    def url(self, pod_ip: str) -> str:
        """Return the address to ask."""
        return f"{self.scheme}://{self.host or pod_ip}:{self.port}/{self.path.lstrip('/')}"


@dataclass(frozen=True, slots=True)
class Readiness:
    """The verdict of the answers so far. row: how many last answers agreed."""

    ready: bool = False
    last: bool | None = None
    row: int = 0


def probe_of(container: Object) -> ReadinessProbe | None:
    """Return the container's readiness probe; None if there is none that is done here."""
    probe = container.get("readinessProbe") or {}
    http_get = probe.get("httpGet")
    if not isinstance(http_get, Mapping):
        return None
    port = http_get.get("port")
    named = {each.get("name"): each.get("containerPort") for each in container.get("ports") or ()}
    number = named.get(port, port)
    if not isinstance(number, int):
        return None
    return ReadinessProbe(
        str(http_get.get("scheme") or "HTTP").lower(),
        str(http_get.get("host") or ""),
        number,
        str(http_get.get("path") or "/"),
        float(probe.get("initialDelaySeconds") or 0),
        float(probe.get("periodSeconds") or 10),
        float(probe.get("timeoutSeconds") or 1),
        int(probe.get("successThreshold") or 1),
        int(probe.get("failureThreshold") or 3),
    )


def after(before: Readiness, good: bool, probe: ReadinessProbe) -> Readiness:
    """Return what one more answer makes of it. good: the status was 200 to 399."""
    row = before.row + 1 if before.last is good else 1
    if row < (probe.successes if good else probe.failures):
        return Readiness(before.ready, good, row)
    return Readiness(good, good, row)

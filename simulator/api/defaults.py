"""What the API server fills in at a creation, as far as our programs and the schedulers read it."""

from __future__ import annotations

from typing import Any


def no_defaults(obj: dict[str, Any]) -> None:
    """Most kinds are kept as they come."""


def pod_defaults(obj: dict[str, Any]) -> None:
    """A pod is Pending, has a scheduler, a priority and a grace, and its limits stand in for missing requests."""
    spec = obj.setdefault("spec", {})
    for key, value in (
        ("schedulerName", "default-scheduler"),
        ("restartPolicy", "Always"),
        ("terminationGracePeriodSeconds", 30),
        ("priority", 0),
        ("enableServiceLinks", True),
        ("dnsPolicy", "ClusterFirst"),
        ("serviceAccountName", "default"),
    ):
        spec.setdefault(key, value)
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        resources = container.get("resources") or {}
        if resources.get("limits"):
            resources["requests"] = {**resources["limits"], **(resources.get("requests") or {})}
    obj["status"] = {"phase": "Pending"}


def job_defaults(obj: dict[str, Any]) -> None:
    """A job without numbers is one pod, once."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("completionMode", "NonIndexed")
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)

"""Names the paths of each kind of child on the API server."""

from __future__ import annotations

from collections.abc import Mapping

from turnout.controllers.children import POD_GROUPS
from turnout.controllers.model import Setup

PODS = "/api/v1"
_FIXED = {
    "ConfigMap": ("/api/v1", "configmaps"),
    "Secret": ("/api/v1", "secrets"),
    "Pod": ("/api/v1", "pods"),
    "Service": ("/api/v1", "services"),
    "HorizontalPodAutoscaler": ("/apis/autoscaling/v2", "horizontalpodautoscalers"),
}


def path_prefixes(setup: Setup) -> Mapping[str, tuple[str, str]]:
    """Return, by kind, the path of its group and its plural."""
    if setup.dialect not in POD_GROUPS:
        return _FIXED
    return {**_FIXED, "PodGroup": (f"/apis/{POD_GROUPS[setup.dialect]}", "podgroups")}


def collection_path(prefix: tuple[str, str], namespace: str) -> str:
    """Return the path of the children of one kind in one namespace, "" for all of them."""
    group, plural = prefix
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"

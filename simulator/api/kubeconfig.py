"""Write the kubeconfig of an embedded API: JSON, which is valid YAML."""

from __future__ import annotations

import json


def kubeconfig(url: str) -> str:
    """Return a kubeconfig that points to a URL and names no user."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "yard", "cluster": {"server": url}}],
        "users": [{"name": "yard", "user": {}}],
        "contexts": [{"name": "yard", "context": {"cluster": "yard", "user": "yard", "namespace": "default"}}],
        "current-context": "yard",
    }
    return json.dumps(config, indent=2) + "\n"

"""Write the kubeconfig of an embedded API: JSON, which is valid YAML."""

from __future__ import annotations

import json

NAME = "turnout-local"  # of its cluster, user and context
OLD_NAME = "yard"  # of a second context, for one release


def kubeconfig(url: str) -> str:
    """Return a kubeconfig that points to a URL and names no user."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": url}}],
        "users": [{"name": NAME, "user": {}}],
        "contexts": [
            {"name": name, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}
            for name in (NAME, OLD_NAME)
        ],
        "current-context": NAME,
    }
    return json.dumps(config, indent=2) + "\n"

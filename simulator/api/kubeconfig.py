"""Write the kubeconfig of an embedded API: JSON, which is valid YAML."""

from __future__ import annotations

import json

NAME = "turnout-local"  # of its cluster, user and context


def prefix(token: str) -> str:
    """Return the start of a URL's path that shows a token, such as /token/abc. The path of the API follows it."""
    return f"/token/{token}"


def kubeconfig(url: str, token: str = "") -> str:
    """Return a kubeconfig that points to a URL, as JSON text.

    token: of its user, "" for a URL that needs none or contains it. client-go sends no token to a server without TLS,
    so the token is in the path of the URL as well.
    """
    user = {"token": token} if token else {}
    url = url + prefix(token) if token else url
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": {"server": url}}],
        "users": [{"name": NAME, "user": user}],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME, "namespace": "default"}}],
        "current-context": NAME,
    }
    return json.dumps(config, indent=2) + "\n"

"""Lists as the API gives them: their head, their items, and the token with which the next page is asked for."""

from __future__ import annotations

import base64
import json
from typing import Any

from simulator.api.errors import ApiRefusal
from simulator.api.journal import Key, Page
from simulator.api.model import Kind


def as_list(kind: Kind, page: Page) -> bytes:
    """A page as a List."""
    head = {"kind": f"{kind.kind}List", "apiVersion": kind.api_version, "metadata": list_metadata(page)}
    # The API server leaves the kind out of the items of its own lists; every object here begins with it.
    head_of_each = 0 if kind.custom else len(_named(kind))
    start = b"{" if head_of_each else b""
    shown = b",".join(start + stored.raw[head_of_each:] for stored in page.items)
    return json.dumps(head).encode()[:-1] + b',"items":[' + shown + b"]}"


def _named(kind: Kind) -> bytes:
    return f'{{"kind":"{kind.kind}","apiVersion":"{kind.api_version}",'.encode()


def list_metadata(page: Page) -> dict[str, Any]:
    """The metadata of a page: its version, and how to go on."""
    meta: dict[str, Any] = {"resourceVersion": str(page.version)}
    if page.rest is not None:
        meta["continue"] = base64.urlsafe_b64encode(json.dumps([page.version, *page.rest]).encode()).decode()
        meta["remainingItemCount"] = page.left
    return meta


def read_token(text: str) -> tuple[int, Key]:
    """Version and key after which a list goes on. Raises ApiRefusal (400)."""
    try:
        version, namespace, name = json.loads(base64.urlsafe_b64decode(text))
        return int(version), (str(namespace), str(name))
    except (ValueError, TypeError) as error:
        raise ApiRefusal("BadRequest", f"continue key is not valid: {error}") from error

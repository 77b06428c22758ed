"""Fetches what tells how a job stands with its controller: its object, pods, PodGroup and Events, as far as it may."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from turnout.cli.controlled import Account, Pod, Said
    from turnout.controllers.model import Kind
    from turnout.jobs.model import JobKey
    from turnout.kube.client.api_client import Client


async def look(client: Client, key: JobKey) -> Account | None:
    """Tell how a job stands; None for one of a kind that no job controller knows, or that cannot be fetched."""
    from turnout.cli.controlled import There, account
    from turnout.controllers.children import POD_GROUPS
    from turnout.controllers.kinds.registry import KINDS as CONTROLLED
    from turnout.jobs.kinds.registry import KINDS

    if key.kind not in KINDS or (kind := CONTROLLED.get(KINDS[key.kind].object_kind or key.kind)) is None:
        return None
    api, place = KINDS[key.kind].api_version, f"namespaces/{quote(key.namespace, safe='')}"
    raw = await _named(client, f"/apis/{api}/{place}/{kind.plural}", key.name)
    if raw is None:
        return None
    groups = [await _named(client, f"/apis/{group}/{place}/podgroups", key.name) for group in POD_GROUPS.values()]
    phases = [str((each.get("status") or {}).get("phase") or "") for each in groups if each is not None]
    pods = await _pods(client, f"/api/v1/{place}/pods", kind, raw)
    said = await _said(client, f"/api/v1/{place}/events", kind, raw)
    there = There(pods, phases[0] if phases else None, said)
    typed = {"apiVersion": api, "kind": kind.kind, **raw}
    return account(kind, typed, f"{kind.kind}/{key.namespace}/{key.name}", there, time.time())


async def _named(client: Client, path: str, name: str) -> Any:
    """Return an object by the right to list, which a viewer has; None where there is none, or it may not be read."""
    found = await _list(client, path, {"fieldSelector": f"metadata.name={name}"})
    return next((each for each in found if each["metadata"].get("name") == name), None)


async def _list(client: Client, path: str, params: Mapping[str, Any]) -> list[Any]:
    """Return what a list has; nothing of what may not be listed or is not served."""
    import msgspec

    from turnout.kube.errors import Forbidden, NotFound

    found: list[Any] = []
    try:
        async for page in client.pages(path, params):
            found += msgspec.json.decode(page).get("items") or []
    except (Forbidden, NotFound):
        return []
    return found


async def _pods(client: Client, path: str, kind: Kind, raw: Any) -> tuple[Pod, ...]:
    words, meta = kind.child_labels, raw["metadata"]
    found = await _list(client, path, {"labelSelector": f"{words.job}={meta['name']}"})
    owned = (
        each
        for each in found
        if any(
            owner.get("uid") == meta["uid"] and owner.get("controller")
            for owner in each["metadata"].get("ownerReferences") or ()
        )
    )
    return tuple(_pod(each, words.role, words.index) for each in owned if "deletionTimestamp" not in each["metadata"])


def _pod(raw: Any, role: str, index: str) -> Pod:
    from turnout.cli.controlled import Pod

    labels, status = raw["metadata"].get("labels") or {}, raw.get("status") or {}
    said = str(labels.get(index, ""))
    waits = (
        str(each.get("message") or "")
        for each in status.get("conditions") or ()
        if each.get("type") == "PodScheduled" and each.get("status") == "False"
    )
    number = int(said) if said.isascii() and said.isdigit() and len(said) < 8 else 0
    return Pod(str(labels.get(role, "")), number, str(status.get("phase") or "Pending"), next(waits, ""))


async def _said(client: Client, path: str, kind: Kind, raw: Any) -> tuple[Said, ...]:
    """Return the Events on this very object, not on one that had its name."""
    from turnout.cli.controlled import Said
    from turnout.kube.times import since_1970

    meta = raw["metadata"]
    selector = f"involvedObject.name={meta['name']},involvedObject.kind={kind.kind}"
    return tuple(
        Said(str(each.get("reason") or ""), str(each.get("message") or ""), since_1970(when) or 0.0)
        for each in await _list(client, path, {"fieldSelector": selector})
        if (each.get("involvedObject") or {}).get("uid") == meta["uid"]
        for when in (each.get("lastTimestamp") or each.get("eventTime") or each["metadata"].get("creationTimestamp"),)
    )

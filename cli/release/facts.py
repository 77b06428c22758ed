"""Lists what is known of pods with the scheduling gate, and whether a nominator works."""

from __future__ import annotations

import time
from collections.abc import Sequence
from urllib.parse import quote

import msgspec

from turnout.cli.release.gate import COMPONENT, Gate, behind_gate, gate_of
from turnout.cli.verb_support.listing import Lists, items
from turnout.kube.errors import Forbidden
from turnout.kube.objects import Lease, Pod
from turnout.kube.status import decode_json_object

LEASES = "/apis/coordination.k8s.io/v1/leases"
OURS = {"labelSelector": f"app.kubernetes.io/name={COMPONENT}"}


async def gate_facts(client: Lists, pods: Sequence[Pod]) -> Gate | None:
    """Return why the pods of one job have the scheduling gate; None if none of them has it.

    Lists Events of their namespace and the Leases of nominators. Without the right to list Events no reason is known;
    without the right to list Leases it is unknown whether a nominator works. Raises CallError if a list fails for
    another reason.
    """
    gated = behind_gate(pods)
    if not gated:
        return None
    path = f"/api/v1/namespaces/{quote(gated[0].metadata.namespace, safe='')}/events"
    events = await items(client, path, {"fieldSelector": f"involvedObject.kind=Pod,reportingComponent={COMPONENT}"})
    return gate_of(gated, events, await _leases(client), time.time())


async def _leases(client: Lists) -> list[Lease] | None:
    """Return the Leases of nominators; None if they may not be listed, or if one is invalid."""
    try:
        found = []
        async for page in client.pages(LEASES, OURS):
            found += [msgspec.convert(each, Lease) for each in decode_json_object(LEASES, page).get("items") or ()]
        return found
    except (Forbidden, msgspec.ValidationError):
        return None

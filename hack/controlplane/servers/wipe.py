"""Restores the content that etcd had when a control plane became ready, so that one control plane serves many tests.

Objects are deleted in etcd, not through the API server, so finalizers, grace periods and missing controllers do not
delay it. Every watch still reports the deletions. The calls use etcd's JSON gateway.
"""

from __future__ import annotations

import base64
import json
import re
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PREFIX = b"/registry/"
AT_ONCE = 100  # etcd takes 128 operations in one transaction
ROUNDS = 20
# The API server writes these objects by itself at any time: they are neither deleted nor restored.
ITS_OWN = re.compile(
    rb"/registry/(masterleases/|leases/kube-system/|ranges/|ipaddresses/|servicecidrs/|apiregistration\.k8s\.io/"
    rb"|configmaps/kube-system/|services/[^/]+/default/kubernetes|endpointslices/default/kubernetes"
    rb"|flowschemas/|prioritylevelconfigurations/|clusterroles/system:|clusterrolebindings/system:|roles/kube-"
    rb"|rolebindings/kube-|namespaces/kube-|priorityclasses/system-|apiextensions\.k8s\.io/apiservices)"
)


# Admission obeys these for about a second after their deletion, since it reads them about once a second.
LINGERS = re.compile(
    rb"/registry/(validatingadmissionpolic|mutatingadmissionpolic|mutatingwebhookconfigurations/"
    rb"|validatingwebhookconfigurations/(?!validator\.training-operator))"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """A key's value, and the revision at which it was written last."""

    revision: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Etcd:
    """The address of an etcd, and the TLS context that it accepts."""

    url: str
    context: ssl.SSLContext


def snapshot(etcd: Etcd) -> dict[bytes, Entry]:
    """Return all that the API server has stored in etcd: key -> revision and value. Raises OSError if etcd does not
    answer.
    """
    found = _call(etcd, "range", {"key": _text(PREFIX), "range_end": _text(_end_of_range(PREFIX))})
    return {
        base64.b64decode(each["key"]): Entry(each["mod_revision"], base64.b64decode(each.get("value", "")))
        for each in found.get("kvs", ())
    }


def restore(etcd: Etcd, before: Mapping[bytes, Entry]) -> bool:
    """Bring etcd back to the snapshot `before`: delete newer keys, and write changed or deleted keys again.

    This is repeated until nothing differs, since controllers inside the API server react to deletions. Returns False,
    and changes nothing, if there is a new object (LINGERS) that admission would obey after its deletion. Keys that the
    API server writes by itself (ITS_OWN) are ignored. Raises RuntimeError if keys still differ after ROUNDS
    repetitions, and OSError if etcd does not answer.
    """
    if any(key not in before and LINGERS.match(key) for key in snapshot(etcd)):
        return False
    for _ in range(ROUNDS):
        now = snapshot(etcd)
        deleted = [key for key in now if key not in before and not ITS_OWN.match(key)]
        changed = [
            key
            for key, entry in before.items()
            if not ITS_OWN.match(key) and (key not in now or now[key].value != entry.value)
        ]
        if not deleted and not changed:
            return True
        _write(etcd, [*map(_removal, deleted), *(_put(key, before[key].value) for key in changed)])
    raise RuntimeError(f"etcd at {etcd.url} still differs after {ROUNDS} rounds: {sorted([*deleted, *changed])[:5]}")


def _write(etcd: Etcd, operations: Sequence[Mapping[str, Any]]) -> None:
    """Carry out the operations, at most AT_ONCE in one transaction."""
    for at in range(0, len(operations), AT_ONCE):
        _call(etcd, "txn", {"success": list(operations[at : at + AT_ONCE])})


def _removal(key: bytes) -> dict[str, Any]:
    return {"request_delete_range": {"key": _text(key)}}


def _put(key: bytes, value: bytes) -> dict[str, Any]:
    return {"request_put": {"key": _text(key), "value": _text(value)}}


def _call(etcd: Etcd, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Call etcd's JSON gateway, and return the decoded answer. verb: such as "range". body: sent as JSON."""
    call = urllib.request.Request(
        f"{etcd.url}/v3/kv/{verb}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(call, timeout=30, context=etcd.context) as answer:
        reply: dict[str, Any] = json.load(answer)
        return reply


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _end_of_range(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with `prefix`, which must not end with the byte 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])

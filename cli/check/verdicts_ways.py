"""Judge the three ways by which a plan reaches a scheduler: which this cluster can use, and which is used. Pure.

A line a way. One that is not used is a fault only where no other is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from turnout.cli.check.model import Line, Object, Seen, Word
from turnout.kube.labels import GATES

_ABOUT = "way"
_UNUSED = None  # the word of a way that is not used: it depends on the others
_FIRST = (1, 30)  # with gates and with policies that guard who nominates
_POLICY = (1, 36)  # that serves MutatingAdmissionPolicy without a flag


def ways(seen: Seen) -> Iterator[Line]:
    """Yield a line for the extender, one for nominations and one for gates, where Deployments could be seen."""
    if not seen.deployments:
        return
    found = [_extender(seen), _nominations(seen), _gates(seen)]
    used = any(line.word is not _UNUSED for line in found)
    for line in found:
        word = line.word or (Word.FINE if used else Word.DOUBTFUL)
        yield Line(word, _ABOUT, line.text, line.remedy)


class _Way(NamedTuple):
    word: Word | None
    text: str
    remedy: str = ""


def _extender(seen: Seen) -> _Way:
    there = _has(seen, "extender") or _has(seen, "scheduler")
    if _sum(seen, "turnout_extender_requests_total"):
        return _Way(Word.FINE, "extender: used, kube-scheduler asks it")
    if there and seen.pages and all(page is None for page in seen.pages.values()):
        return _Way(Word.UNKNOWN, "extender: installed; whether it is asked cannot be seen", "see the lines above")
    if there:
        remedy = "put the block of its NOTES into kube-scheduler's configuration; on a managed cluster use gates"
        return _Way(_UNUSED, "extender: installed, not used", remedy)
    remedy = "where kube-scheduler can be configured: helm upgrade --set extender.enabled=true; else use gates"
    return _Way(_UNUSED, "extender: not installed", remedy)


def _nominations(seen: Seen) -> _Way:
    if _has(seen, "nominator"):
        return _Way(Word.FINE, "nominations: used, a nominator is installed")
    if _version(seen) < _FIRST:
        return _Way(_UNUSED, "nominations: this cluster cannot use them", "upgrade it to Kubernetes 1.30")
    return _Way(_UNUSED, "nominations: not used", "helm upgrade --set nominator.enabled=true")


def _gates(seen: Seen) -> _Way:
    gated = seen.ways.gated or 0
    if _version(seen) < _FIRST:
        return _Way(_UNUSED, "gates: this cluster cannot use them", "upgrade it to Kubernetes 1.30")
    if not any("--gates" in _words(each) for each in _of(seen, "nominator")):
        if gated:
            told = f"gates: {gated} pods wait behind ours, and no nominator lifts them"
            return _Way(Word.WRONG, told, "helm upgrade --set nominator.gates=true, or turnout release --all")
        return _Way(_UNUSED, f"gates: not used; {_means(seen)}", "helm upgrade --set nominator.gates=true")
    putters = [*_policies(seen), *_webhooks(seen)]
    if any("--gate-pods" in _words(each) for each in _of(seen, "controller")):
        putters.append("our job controllers")
    told = f"gates: used; {gated} pods wait; put by {' and '.join(putters) or 'templates of pods alone'}"
    labelled = seen.ways.namespaces
    if (_policies(seen) or _webhooks(seen)) and labelled is not None and not labelled:
        return _Way(Word.DOUBTFUL, f"{told}, in no namespace", f"kubectl label namespace NAME {GATES}=true")
    if labelled and not _policies(seen) and not _webhooks(seen) and not seen.refused:
        said = f"{told}; namespaces ask for them by a label that nothing obeys: {', '.join(labelled[:3])}"
        return _Way(Word.DOUBTFUL, said, "helm upgrade --set nominator.gatePods=true")
    return _Way(Word.FINE, told)


def _means(seen: Seen) -> str:
    """Say by what this cluster can put gates on pods."""
    if seen.ways.served or (_version(seen) >= _POLICY and seen.ways.served is None):
        return "a policy of this API server can put them on pods"
    return "this API server serves no MutatingAdmissionPolicy: a webhook, or templates of pods, put them there"


def _policies(seen: Seen) -> list[str]:
    return [f"the policy {each['metadata']['name']}" for each in seen.ways.policies or ()]


def _webhooks(seen: Seen) -> list[str]:
    return [f"the webhook {each['metadata']['name']}" for each in seen.ways.webhooks or ()]


def _version(seen: Seen) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", seen.server_version)
    return (int(match[1]), int(match[2])) if match else _POLICY


def _of(seen: Seen, component: str) -> list[Object]:
    name = f"turnout-{component}"
    told = [(each["metadata"].get("labels") or {}, each) for each in seen.deployments or ()]
    return [each for labels, each in told if labels.get("app.kubernetes.io/name") == name]


def _has(seen: Seen, component: str) -> bool:
    return any((each.get("status") or {}).get("readyReplicas") for each in _of(seen, component))


def _words(deployment: Object) -> list[str]:
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [word for each in pod.get("containers") or () for word in each.get("args") or ()]


def _sum(seen: Seen, name: str) -> float:
    return sum(each.value for page in filter(None, seen.pages.values()) for each in page if each.name == name)

"""Judge the three ways by which a plan reaches a scheduler: which this cluster can use, and which is used. Pure.

A line a way. One that is not used is a fault only where no other is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from turnout.cli.check.model import ClusterFacts, Line, Object, Word
from turnout.kube.labels import GATES

_ABOUT = "way"
_UNUSED = None  # the word of a way that is not used: it depends on the others
_FIRST = (1, 30)  # with gates and with policies that guard who nominates
_POLICY = (1, 36)  # that serves MutatingAdmissionPolicy without a flag


def ways(facts: ClusterFacts) -> Iterator[Line]:
    """Yield a line for the extender, one for nominations and one for gates, where Deployments could be seen."""
    if not facts.deployments:
        return
    found = [_extender(facts), _nominations(facts), _gates(facts)]
    used = any(line.word is not _UNUSED for line in found)
    for line in found:
        word = line.word or (Word.FINE if used else Word.DOUBTFUL)
        yield Line(word, _ABOUT, line.text, line.remedy)


class _Way(NamedTuple):
    word: Word | None
    text: str
    remedy: str = ""


def _extender(facts: ClusterFacts) -> _Way:
    is_installed = _has(facts, "extender") or _has(facts, "scheduler")
    if _sum(facts, "turnout_extender_requests_total"):
        return _Way(Word.FINE, "extender: used, kube-scheduler asks it")
    if is_installed and facts.pages and all(page is None for page in facts.pages.values()):
        return _Way(Word.UNKNOWN, "extender: installed; whether it is asked cannot be seen", "see the lines above")
    if is_installed:
        remedy = "put the block of its NOTES into kube-scheduler's configuration; on a managed cluster use gates"
        return _Way(_UNUSED, "extender: installed, not used", remedy)
    remedy = "where kube-scheduler can be configured: helm upgrade --set extender.enabled=true; else use gates"
    return _Way(_UNUSED, "extender: not installed", remedy)


def _nominations(facts: ClusterFacts) -> _Way:
    if _has(facts, "nominator"):
        return _Way(Word.FINE, "nominations: used, a nominator is installed")
    if _version(facts) < _FIRST:
        return _Way(_UNUSED, "nominations: this cluster cannot use them", "upgrade it to Kubernetes 1.30")
    return _Way(_UNUSED, "nominations: not used", "helm upgrade --set nominator.enabled=true")


def _gates(facts: ClusterFacts) -> _Way:
    gated = facts.ways.gated or 0
    if _version(facts) < _FIRST:
        return _Way(_UNUSED, "gates: this cluster cannot use them", "upgrade it to Kubernetes 1.30")
    if not any("--gates" in _words(each) for each in _deployments_of(facts, "nominator")):
        if gated:
            text = f"gates: {gated} pods wait behind ours, and no nominator lifts them"
            return _Way(Word.WRONG, text, "helm upgrade --set nominator.gates=true, or turnout release --all")
        return _Way(_UNUSED, f"gates: not used; {_installed_means(facts)}", "helm upgrade --set nominator.gates=true")
    putters = [*_policies(facts), *_webhooks(facts)]
    if any("--gate-pods" in _words(each) for each in _deployments_of(facts, "controller")):
        putters.append("our job controllers")
    text = f"gates: used; {gated} pods wait; put by {' and '.join(putters) or 'templates of pods alone'}"
    labelled = facts.ways.namespaces
    if (_policies(facts) or _webhooks(facts)) and labelled is not None and not labelled:
        return _Way(Word.DOUBTFUL, f"{text}, in no namespace", f"kubectl label namespace NAME {GATES}=true")
    if labelled and not _policies(facts) and not _webhooks(facts) and not facts.refused:
        detail = f"{text}; namespaces ask for them by a label that nothing obeys: {', '.join(labelled[:3])}"
        return _Way(Word.DOUBTFUL, detail, "helm upgrade --set nominator.gatePods=true")
    return _Way(Word.FINE, text)


def _installed_means(facts: ClusterFacts) -> str:
    """Say by what this cluster can put gates on pods."""
    if facts.ways.served or (_version(facts) >= _POLICY and facts.ways.served is None):
        return "a policy of this API server can put them on pods"
    return "this API server serves no MutatingAdmissionPolicy: a webhook, or templates of pods, put them there"


def _policies(facts: ClusterFacts) -> list[str]:
    return [f"the policy {each['metadata']['name']}" for each in facts.ways.policies or ()]


def _webhooks(facts: ClusterFacts) -> list[str]:
    return [f"the webhook {each['metadata']['name']}" for each in facts.ways.webhooks or ()]


def _version(facts: ClusterFacts) -> tuple[int, int]:
    match = re.match(r"v?(\d+)\.(\d+)", facts.server_version)
    return (int(match[1]), int(match[2])) if match else _POLICY


def _deployments_of(facts: ClusterFacts, component: str) -> list[Object]:
    name = f"turnout-{component}"
    labelled = [(each["metadata"].get("labels") or {}, each) for each in facts.deployments or ()]
    return [each for labels, each in labelled if labels.get("app.kubernetes.io/name") == name]


def _has(facts: ClusterFacts, component: str) -> bool:
    return any((each.get("status") or {}).get("readyReplicas") for each in _deployments_of(facts, component))


def _words(deployment: Object) -> list[str]:
    pod = ((deployment.get("spec") or {}).get("template") or {}).get("spec") or {}
    return [word for each in pod.get("containers") or () for word in each.get("args") or ()]


def _sum(facts: ClusterFacts, name: str) -> float:
    return sum(each.value for page in filter(None, facts.pages.values()) for each in page if each.name == name)

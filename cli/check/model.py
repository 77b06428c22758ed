"""The values of `turnout check`: what was seen of a cluster, and what is told of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

Object = Mapping[str, Any]


class Word(Enum):
    """The verdict of one line."""

    FINE = "fine"
    UNKNOWN = "unknown"  # it could not be seen
    DOUBTFUL = "doubtful"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class CheckLine:
    """One line of the answer. remedy: what to do, "" where nothing is to be done."""

    word: Word
    about: str
    text: str
    remedy: str = ""


class MetricSample(NamedTuple):
    """A number of a program's metrics page."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Ways:
    """The facts on which the ways to a scheduler depend, beside Deployments. None: it could not be seen."""

    served: bool | None = None  # does the API server have MutatingAdmissionPolicies?
    policies: Sequence[Object] | None = None  # those of ours
    webhooks: Sequence[Object] | None = None  # MutatingWebhookConfigurations of ours
    namespaces: Sequence[str] | None = None  # that ask for our gate by their label
    gated: int | None = None  # pods that wait behind it


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The cluster as it was seen. None: it could not be, and `refused` says why, by what was asked for.

    ours: the version of this program. now_s: its time in seconds since 1970. ahead_s: by how much the API server's
    clock is ahead. deployments: those of ours. others: all others by name, (namespace, name). leases: those beside our
    Deployments, and heartbeats those of nodes. maps: the ConfigMap of the map by its namespace. pages: the metrics of
    each extender that answered, by its pod; None of one that did not.
    """

    ours: str
    now_s: float
    server_version: str = ""
    ahead_s: float | None = None
    nodes: Sequence[Object] | None = None
    deployments: Sequence[Object] | None = None
    others: Sequence[tuple[str, str]] = ()
    leases: Sequence[Object] | None = None
    heartbeats: Sequence[Object] | None = None
    maps: Mapping[str, Object | None] | None = None
    pages: Mapping[str, Sequence[MetricSample] | None] = field(default_factory=dict)
    ways: Ways = field(default_factory=Ways)
    refused: Mapping[str, str] = field(default_factory=dict)
    unserved: Mapping[str, str] = field(default_factory=dict)  # the answer of the API server, by what was asked for

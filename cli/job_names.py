"""Names of jobs as people type them: KIND/NAMESPACE/NAME, KIND/NAME or NAME, with the namespace beside it.

Which jobs there are is left to the verbs. The kinds of the job controllers are named here, so that reading a name
imports none of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

JOB_KINDS = ("ColossalAIJob", "ElasticJob", "MSJob", "PyTorchJob", "VolcanoJob")  # controllers.kinds.registry.KINDS
GANG_KINDS = ("Pod", "PodGroup")  # of gangs that are nobody's job
FORMS = "KIND/NAMESPACE/NAME, KIND/NAME or NAME"
_ALIASES = {
    "vcjob": "VolcanoJob",
    "vj": "VolcanoJob",
    "jobs.batch.volcano.sh": "VolcanoJob",
    "pytorch": "PyTorchJob",
    "po": "Pod",
    "pg": "PodGroup",
}
# Kinds of other systems that are never resized, with what to ask for instead.
_FIXED_KINDS = {
    "trainjob": "a TrainJob is never resized: its spec.trainer cannot be changed. Name one of its Jobs, as in Job/NAME"
}
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_VERSION = re.compile(r"v[0-9]+((alpha|beta)[0-9]+)?\.")  # before the group, as in pytorchjobs.v1.kubeflow.org
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class BadJobName(Exception):
    """The text cannot be the name of a job: it has a wrong form or an unknown kind. End with code 2."""


class JobName(NamedTuple):
    """The name of a job."""

    kind: str  # "" for any
    namespace: str  # "" if the text names none
    name: str

    def __str__(self) -> str:
        return "/".join(filter(None, self))


def can_be_name(text: str) -> bool:
    """Return True if Kubernetes allows this text as the name of an object."""
    return bool(_NAME.fullmatch(text))


def words_of(kinds: Iterable[str], paths: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return a new mapping of kinds as people write them, in lower case, to kinds: with short names and PLURAL.GROUP.

    paths: kind -> path of its objects in the whole cluster, from which plural and group are taken; kinds without a path
    have no such name, and None means that none has.
    """
    names = tuple(kinds)
    known = {name.lower(): name for name in names} | {short: name for short, name in _ALIASES.items() if name in names}
    for kind, path in (paths or {}).items():
        _, _, group, *_, plural = path.split("/")
        known[f"{plural}.{group}"] = kind
    return known


def kind_of(text: str, known: Mapping[str, str]) -> str | None:
    """Return the kind that a word names, None if it is unknown.

    text: in any case, singular or plural, also with its group as kubectl prints it, or with version and group. A group
    that is not the kind's makes it unknown, unless `known` has no group of the kind. known: kinds by lower-case word.
    """
    word = text.lower()
    if kind := known.get(word) or known.get(word.removesuffix("s")):
        return kind
    name, dot, group = word.partition(".")
    if not dot:
        return None
    group = _VERSION.sub("", group)
    if kind := known.get(f"{name}.{group}") or known.get(f"{name}s.{group}"):
        return kind
    kind = known.get(name.removesuffix("s"))
    groups = {key.partition(".")[2] for key, other in known.items() if other == kind and "." in key}
    return kind if not groups or group in groups else None


def read(text: str, known: Mapping[str, str]) -> JobName:
    """Return the parts of a job's name; kind and namespace are "" if the text has none.

    text: NAME, KIND/NAME or KIND/NAMESPACE/NAME; of a gang without a job (Pod, PodGroup) NAME may contain slashes if
    the text has a namespace. known: as `words_of` returns it. Raises BadJobName for another form,
    an unknown kind, or a part that Kubernetes does not allow.
    """
    parts = text.split("/")
    kind = "" if len(parts) == 1 else (kind_of(parts[0], known) or "")
    if len(parts) > 3 and kind in GANG_KINDS:
        parts = [*parts[:2], "/".join(parts[2:])]  # such a gang is named after its owner, as in Pod/team-a/Job/bert
    if len(parts) > 3 or not all(parts):
        raise BadJobName(f"{text!r:.90} is no name of a job: it must be {FORMS}")
    if len(parts) > 1 and not kind:
        kinds = ", ".join(sorted({*known.values()}))
        fixed = kind_of(parts[0], _FIXED_KINDS)
        raise BadJobName(fixed or f"{parts[0]!r:.90} is no kind of job here; those are {kinds}")
    return _checked_name(kind, parts)


def _checked_name(kind: str, parts: Sequence[str]) -> JobName:
    """Return the name with these parts: NAME, KIND NAME or KIND NAMESPACE NAME. Raises BadJobName for a wrong form.

    kind: the full kind, "" for none. Of a gang without a job, NAME may contain slashes and capital letters.
    """
    namespace, name = parts[1] if len(parts) == 3 else "", parts[-1]
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise BadJobName(f"{namespace!r:.90} cannot be a namespace: small letters, digits and dashes")
    if not all(_NAME.fullmatch(part if kind not in GANG_KINDS else part.lower()) for part in name.split("/")):
        raise BadJobName(f"{name!r:.90} cannot be the name of a job: small letters, digits, dashes and dots")
    return JobName(kind, namespace, name)

"""Compares the children of a job with those that are wanted, once for all kinds.

Children are made in order and go with the highest index first. When they are wanted is decided in reconcile.py, or by
a kind with a life of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial

from turnout.controllers import children
from turnout.controllers.model import (
    ChildKey,
    ChildSeen,
    Delete,
    Dialect,
    Later,
    Object,
    PodSeen,
    Role,
    Seen,
    Setup,
    Update,
    Wanted,
    Write,
)
from turnout.controllers.portion import Portion

POD = "Pod"


def missing(role: Role, pods: Iterable[PodSeen]) -> list[int]:
    """Return the indices of a role that none of these pods has, the lowest first."""
    there = {pod.index for pod in pods}
    return [index for index in range(role.replicas) if index not in there]


def by_role(pods: Iterable[PodSeen]) -> dict[str, list[PodSeen]]:
    """Return the pods by the label of their role: one walk, however many roles a job has."""
    found: dict[str, list[PodSeen]] = {}
    for pod in pods:
        found.setdefault(pod.role, []).append(pod)
    return found


def surplus(role: Role, pods: Iterable[PodSeen]) -> list[PodSeen]:
    """Return the pods of a role whose index is above its size, or is none; the highest first."""
    found = [pod for pod in pods if pod.index >= role.replicas or pod.index < 0]
    return sorted(found, key=lambda pod: pod.index, reverse=True)


def delete_pod(pod: PodSeen) -> Delete:
    """Return the deletion of a pod."""
    return Delete(ChildKey(POD, pod.name), pod.uid)


def others(wanted: Iterable[Wanted], seen: Seen, portion: Portion) -> Iterator[Write]:
    """Give what makes the other children be as they are wanted. portion: what this look may still make."""
    keys = set[ChildKey]()
    for body in wanted:
        key = children.key_of(body)
        keys.add(key)
        there = seen.others.get(key)
        if there is None:
            if not portion.is_full():
                yield portion.create(partial(children.built, body))
        elif not isinstance(body, Later) and (kept := children.content(body)) is not None:
            name, wanted_so = kept
            if not children.same(wanted_so, there.data if name == "data" else there.spec):
                yield Update(key, wanted_so, name)
    gone = [each for key, each in seen.others.items() if key not in keys]
    yield from (Delete(each.key, each.uid) for each in sorted(gone, key=lambda each: -each.index))


def all_pods(pods: Iterable[PodSeen]) -> Iterator[Write]:
    """Give the deletions of these pods, but for those that go already."""
    found = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: (pod.role, -pod.index))
    return (delete_pod(pod) for pod in found)


def all_others(seen: Seen) -> Iterator[Write]:
    """Give the deletions of all children that are no pods."""
    return (Delete(each.key, each.uid) for each in sorted(seen.others.values(), key=_last_first))


def _last_first(child: ChildSeen) -> tuple[str, int]:
    return child.key.kind, -child.index


def waits(seen: Seen, setup: Setup) -> bool:
    """True while Volcano has not admitted the job's PodGroup: pods made now would only wait. Source: MS-46"""
    groups = [each for each in seen.others.values() if each.key.kind == "PodGroup"]
    return setup.dialect is Dialect.VOLCANO and (not groups or any(each.phase in ("", "Pending") for each in groups))


def merge_patch(was: Object, made: Object) -> Object:
    """Return the merge patch that makes one object the other: null for what is to go."""
    gone = {name: None for name in was if name not in made}
    changed = {
        name: merge_patch(was[name], each) if isinstance(each, Mapping) and isinstance(was.get(name), Mapping) else each
        for name, each in made.items()
    }
    return {**gone, **changed}

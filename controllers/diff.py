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
    ChildState,
    Delete,
    Dialect,
    KnownChildren,
    Later,
    Object,
    PodState,
    Role,
    Setup,
    Update,
    Wanted,
    Write,
)
from turnout.controllers.portion import Portion

POD = "Pod"


def missing(role: Role, pods: Iterable[PodState]) -> list[int]:
    """Return the indices of a role that none of these pods has, the lowest first."""
    indices = {pod.index for pod in pods}
    return [index for index in range(role.replicas) if index not in indices]


def by_role(pods: Iterable[PodState]) -> dict[str, list[PodState]]:
    """Return the pods by the label of their role: one walk, however many roles a job has."""
    found: dict[str, list[PodState]] = {}
    for pod in pods:
        found.setdefault(pod.role, []).append(pod)
    return found


def surplus(role: Role, pods: Iterable[PodState]) -> list[PodState]:
    """Return the pods of a role whose index is above its size, or is none; the highest first."""
    found = [pod for pod in pods if pod.index >= role.replicas or pod.index < 0]
    return sorted(found, key=lambda pod: pod.index, reverse=True)


def delete_pod(pod: PodState) -> Delete:
    """Return the deletion of a pod."""
    return Delete(ChildKey(POD, pod.name), pod.uid)


def others(bodies: Iterable[Wanted], known: KnownChildren, portion: Portion) -> Iterator[Write]:
    """Give what makes the other children be as they are wanted. portion: what this look may still make."""
    keys = set[ChildKey]()
    for body in bodies:
        key = children.key_of(body)
        keys.add(key)
        child = known.others.get(key)
        if child is None:
            if not portion.is_full():
                yield portion.create(partial(children.build, body))
        elif not isinstance(body, Later) and (expected := children.content(body)) is not None:
            name, content = expected
            if not children.same(content, child.data if name == "data" else child.spec):
                yield Update(key, content, name)
    surplus_children = [each for key, each in known.others.items() if key not in keys]
    yield from (Delete(each.key, each.uid) for each in sorted(surplus_children, key=lambda each: -each.index))


def delete_pods(pods: Iterable[PodState]) -> Iterator[Write]:
    """Give the deletions of these pods, but for those that go already."""
    found = sorted((pod for pod in pods if not pod.deleting), key=lambda pod: (pod.role, -pod.index))
    return (delete_pod(pod) for pod in found)


def delete_others(known: KnownChildren) -> Iterator[Write]:
    """Give the deletions of all children that are no pods."""
    return (Delete(each.key, each.uid) for each in sorted(known.others.values(), key=_last_first))


def _last_first(child: ChildState) -> tuple[str, int]:
    return child.key.kind, -child.index


def waits_for_admission(known: KnownChildren, setup: Setup) -> bool:
    """True while Volcano has not admitted the job's PodGroup: pods made now would only wait. Source: MS-46"""
    groups = [each for each in known.others.values() if each.key.kind == "PodGroup"]
    return setup.dialect is Dialect.VOLCANO and (not groups or any(each.phase in ("", "Pending") for each in groups))


def merge_patch(before: Object, after: Object) -> Object:
    """Return the merge patch that makes one object the other: null for what is to go."""
    removed = {name: None for name in before if name not in after}
    changed = {
        name: merge_patch(before[name], each)
        if isinstance(each, Mapping) and isinstance(before.get(name), Mapping)
        else each
        for name, each in after.items()
    }
    return {**removed, **changed}

"""Admission policies for an account that may change a few fields of an object and no others, as CEL.

RBAC knows verbs and no fields: whoever may patch a job may give it another image. Needs Kubernetes 1.30.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = dict[str, Any]  # the fields that may change: a name and what of it, {} for all
# The chart puts the expression there, since it knows the namespace and the name: a line of its own, for it is long.
BY_ACCOUNT = "WHETHER-THE-REQUEST-IS-BY-THE-ACCOUNT-OF-THIS-RELEASE"
KEPT_BY_THE_SERVER = ("managedFields", "resourceVersion", "generation")

# dyn: the fields are walked as they came, so a field of a newer version is guarded as well.
VARIABLES = {
    "was": "dyn(oldObject)",
    "becomes": "dyn(object)",
    "notesWere": "dyn(has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})",
    "notesBecome": "dyn(has(object.metadata.annotations) ? object.metadata.annotations : {})",
}


def only(fields: Sequence[str], note: str) -> str:
    """CEL, true while an object's update changes nothing but these fields and some annotations.

    fields: as a.b.c, with `[]` for each item of a list. note: CEL that says of the name `key` whether it is one.
    """
    tree: Tree = {"metadata": {}}
    for field in fields:
        inner = tree
        for name in field.split("."):
            inner = inner.setdefault(name, {})
    free = ("annotations", *KEPT_BY_THE_SERVER)
    checks = [
        *_levels("variables.was", "variables.becomes", tree),
        *_same("variables.was.metadata", "variables.becomes.metadata", f"key in {list(free)}"),
        *_same("variables.notesWere", "variables.notesBecome", note),
    ]
    return "\n&& ".join(checks)


def others_stay(path: str, theirs: str) -> str:
    """CEL, true while of a list on the path, such as spec.taints, those items stay as they are that are not ours.

    theirs: CEL that says so of `each`.
    """

    def kept(root: str) -> str:
        first = path.split(".")[0]
        there = f"has(variables.{root}.{first}) && has(variables.{root}.{path})"
        return f"({there} ? variables.{root}.{path}.filter(each, {theirs}) : [])"

    return f"{kept('was')} == {kept('becomes')}"


def policy(name: str, rule: tuple[str, str, Sequence[str]], says: str, expression: str) -> list[Any]:
    """Return a ValidatingAdmissionPolicy on what an account does to a (group, resource, operations), and its binding.

    Several resources stand in one text, with commas between.
    expression: CEL over VARIABLES. says: what the account reads where it is false.
    """
    by_it = {"name": "by-the-account", "expression": BY_ACCOUNT}
    return _made(name, rule, {"matchConditions": [by_it]}, ((says, expression),), {})


def guard(
    name: str, rule: tuple[str, str, Sequence[str]], namespaces: Mapping[str, Any], checks: Sequence[tuple[str, str]]
) -> list[Any]:
    """Make a policy on what anybody does in some namespaces.

    checks: (message, expression), each of which has to be true.
    """
    return _made(name, rule, {}, checks, {"matchResources": {"namespaceSelector": dict(namespaces)}})


def _made(
    name: str,
    rule: tuple[str, str, Sequence[str]],
    more: Mapping[str, Any],
    checks: Sequence[tuple[str, str]],
    where: Mapping[str, Any],
) -> list[Any]:
    group, resource, operations = rule
    resources = resource.split(",")
    matched = {"apiGroups": [group], "apiVersions": ["*"], "resources": resources, "operations": list(operations)}
    expressions = " ".join(expression for _, expression in checks)
    used = [{"name": key, "expression": text} for key, text in VARIABLES.items() if f"variables.{key}" in expressions]
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [matched]},
        **more,
        **({"variables": used} if used else {}),
        "validations": [{"message": says, "expression": expression} for says, expression in checks],
    }
    form = "admissionregistration.k8s.io/v1"
    at_work = {"policyName": name, "validationActions": ["Deny"], **where}
    return [
        {"apiVersion": form, "kind": "ValidatingAdmissionPolicy", "metadata": {"name": name}, "spec": spec},
        {"apiVersion": form, "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": at_work},
    ]


def _levels(was: str, becomes: str, tree: Tree) -> Iterator[str]:
    """Level by level: a map is the same but for the fields that are free, and those that are walked into."""
    yield from _same(was, becomes, f"key in {[name.removesuffix('[]') for name in tree]}")
    for name, inner in tree.items():
        before, after = f"{was}.{name.removesuffix('[]')}", f"{becomes}.{name.removesuffix('[]')}"
        if name.endswith("[]"):
            same = " && ".join(_same("a", "b", f"key in {list(inner)}"))
            yield f"size({before}) == size({after})"
            yield f"{before}.all(a, {after}.exists(b, {same}))"
            yield f"{after}.all(b, {before}.exists(a, {same}))"
        elif inner:
            yield from _levels(before, after, inner)


def _same(was: str, becomes: str, free: str) -> Iterator[str]:
    yield f"{becomes}.all(key, {free} || (key in {was} && {was}[key] == {becomes}[key]))"
    yield f"{was}.all(key, {free} || key in {becomes})"

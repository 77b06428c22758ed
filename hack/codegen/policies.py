"""Admission policies for an account that may change a few fields of an object and no others, as CEL.

RBAC knows verbs and no fields: whoever may patch a job may give it another image. Needs Kubernetes 1.30.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Tree = dict[str, Any]  # the fields that may change: a name and what of it, {} for all
# The chart puts its expression in place of this text, since it knows the namespace and the name.
BY_ACCOUNT = "WHETHER-THE-REQUEST-IS-BY-THE-ACCOUNT-OF-THIS-RELEASE"
KEPT_BY_THE_SERVER = ("managedFields", "resourceVersion", "generation")

# dyn: the fields are compared without their schema, so a field of a newer version is guarded as well.
VARIABLES = {
    "was": "dyn(oldObject)",
    "becomes": "dyn(object)",
    "notesWere": "dyn(has(oldObject.metadata.annotations) ? oldObject.metadata.annotations : {})",
    "notesBecome": "dyn(has(object.metadata.annotations) ? object.metadata.annotations : {})",
}


def changes_only(fields: Sequence[str], note: str) -> str:
    """Return CEL that is true if an update changes only these fields, and annotations that `note` allows.

    fields: as a.b.c, with `[]` for each item of a list. note: CEL that is true for an allowed annotation, named `key`.
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
    """Return CEL that is true if an update leaves all items of other owners in a list as they were.

    path: of the list, such as spec.taints. theirs: CEL that is true if the item `each` belongs to another owner.
    """

    def others_of(root: str) -> str:
        first = path.split(".")[0]
        both_exist = f"has(variables.{root}.{first}) && has(variables.{root}.{path})"
        return f"({both_exist} ? variables.{root}.{path}.filter(each, {theirs}) : [])"

    return f"{others_of('was')} == {others_of('becomes')}"


def policy(name: str, rule: tuple[str, str, Sequence[str]], says: str, expression: str) -> list[Any]:
    """Return a ValidatingAdmissionPolicy on what our account does, and its binding.

    rule: (group, resources separated by commas, operations). expression: CEL over VARIABLES. says: the message that the
    account gets where the expression is false.
    """
    by_it = {"name": "by-the-account", "expression": BY_ACCOUNT}
    return _policy_and_binding(name, rule, {"matchConditions": [by_it]}, ((says, expression),), {})


def guard(
    name: str, rule: tuple[str, str, Sequence[str]], namespaces: Mapping[str, Any], checks: Sequence[tuple[str, str]]
) -> list[Any]:
    """Return a policy on what any account does in some namespaces, and its binding.

    namespaces: selector. checks: (message, expression); every expression has to be true. rule: (group, resources
    separated by commas, operations).
    """
    return _policy_and_binding(name, rule, {}, checks, {"matchResources": {"namespaceSelector": dict(namespaces)}})


def _policy_and_binding(
    name: str,
    rule: tuple[str, str, Sequence[str]],
    more: Mapping[str, Any],
    checks: Sequence[tuple[str, str]],
    where: Mapping[str, Any],
) -> list[Any]:
    """Return a ValidatingAdmissionPolicy and its binding.

    more: further fields of the policy's spec. checks: (message, CEL). where: further fields of the binding's spec.
    rule: as in `guard`.
    """
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
    """Yield CEL that two maps are equal except for the free fields, level by level. was, becomes: CEL of the maps.

    The items of a list may change their order, and among items that are equal except for their free fields only the set
    is compared, since CEL of Kubernetes 1.30 cannot compare lists by position. So use it only for lists whose items
    have unique names, such as the tasks of a VolcanoJob. tree: the free fields, as nested maps; "[]" ends the name of a
    list.
    """
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

"""Write the roles and policies that follow from autoscaler/rbac_rules.py: `python -m hack.codegen.rbac`.

They are templates of the chart. tests/deploy checks that the files are up to date, and what the roles allow.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from hack.codegen import policies
from turnout.autoscaler.rbac_rules import (
    ANNOTATION_PREFIX,
    CHECKED,
    GANG_MINS,
    KINDS,
    LANDING_RULES,
    LEASE_RULES,
    MARK_PODS_RULES,
    MEMORY,
    NAMED_CONFIGMAPS,
    OBSERVE,
    POD_NOTES,
    READ,
    REVIEWED,
    STATUS_RULES,
    TAINT_NODES,
    KindRights,
    Rule,
)
from turnout.autoscaler.reporting.queue_status import PREFIX
from turnout.kube import labels

FOLDER = Path("deploy/charts/turnout/templates")
HEAD = "{{- /* Written by `python -m hack.codegen.rbac` from autoscaler/rbac_rules.py: change it there. */}}\n"
ACCOUNT, SUBJECT, NAMESPACE = "ACCOUNT", "SUBJECT", "NAMESPACE"  # what helm puts a name for
_RBAC = "rbac.authorization.k8s.io"
_ON = ".Values.autoscaler.enabled"
_ACTS = f"and {_ON} .Values.autoscaler.act"
Object = dict[str, Any]


def files() -> dict[str, str]:
    """Return the templates of roles, bindings and policies: their text by path relative to FOLDER."""
    own = [("-given", NAMED_CONFIGMAPS), ("-status", STATUS_RULES), ("-lease", LEASE_RULES)]
    found = {
        "autoscaler/roles.yaml": (
            _ON,
            [*_role_and_binding("", OBSERVE), *(o for end in own for o in _role_and_binding(*end, NAMESPACE))],
        ),
        "autoscaler/tells-of-queues.yaml": (_ON, _status_only()),
        "autoscaler/mark-pods.yaml": (
            f"and {_ON} .Values.autoscaler.markPods",
            [*_role_and_binding("-mark-pods", MARK_PODS_RULES), *_notes_only()],
        ),
        "autoscaler/taint-nodes.yaml": (
            f"and {_ON} .Values.autoscaler.taintNodes",
            [*_role_and_binding("-taint-nodes", TAINT_NODES), *_taint_only()],
        ),
    }
    found["autoscaler/gang-mins.yaml"] = (
        _ACTS,
        [*_role_and_binding("-gang-mins", GANG_MINS.writes), *_sizes_only("gang-mins", GANG_MINS)],
    )
    for name, kind in KINDS.items():
        if kind.writes:
            word = name.lower()
            found[f"autoscaler/resize-{word}.yaml"] = (
                f'{_ACTS} (has "{name}" .Values.autoscaler.kinds)',
                [*_role_and_binding(f"-resize-{word}", kind.writes), *_sizes_only(word, kind)],
            )
    page = [rule for rule in OBSERVE if rule.resources != ("events",)]
    found["page/roles.yaml"] = (
        ".Values.page.enabled",
        [
            *_role_and_binding("", [*page, Rule("", ("events",)), *LANDING_RULES, *REVIEWED]),
            *_role_and_binding("-given", [replace(rule, verbs=READ) for rule in NAMED_CONFIGMAPS], NAMESPACE),
        ],
    )
    templates = {
        path: template(objects, path.partition("/")[0], condition) for path, (condition, objects) in found.items()
    }
    return {path: HEAD + text for path, text in {**templates, "viewer.yaml": _viewer()}.items()}


def main() -> int:
    """Write all files. Return 0."""
    for path, text in files().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(text)
    return 0


def _role_and_binding(end: str, rules: Sequence[Rule], namespace: str = "") -> list[Object]:
    """Return a role with these rules, and its binding to the account.

    end: end of the role's name. namespace: "" for a ClusterRole.
    """
    meta = {"name": ACCOUNT + end, **({"namespace": namespace} if namespace else {})}
    kind = "Role" if namespace else "ClusterRole"
    role = {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": meta, "rules": [_rule(rule) for rule in rules]}
    return [
        role,
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": ACCOUNT + end},
            "subjects": [{"kind": "ServiceAccount", "name": SUBJECT, "namespace": NAMESPACE}],
        },
    ]


def _viewer() -> str:
    """Return the role of a person who reads what the autoscaler, its status pages and `turnout check` read.

    NAMED_CONFIGMAPS has its own ConfigMaps: their names are listed one by one, in whichever namespace they are.
    """
    observed = (rule for rule in OBSERVE if rule.resources != ("events",))
    rules = [replace(rule, verbs=("list", "watch")) for rule in (Rule("", ("events",), ()), *observed, *CHECKED)]
    named = [replace(rule, verbs=("get", "list", "watch")) for rule in NAMED_CONFIGMAPS]
    role_rules = [_rule(rule) for rule in (*_join_rules(rules), *named)]
    role = {"kind": "ClusterRole", "metadata": {"name": ACCOUNT}, "rules": role_rules}
    return template([{"apiVersion": f"{_RBAC}/v1", **role}], "viewer", ".Values.rbac.viewer")


def _join_rules(rules: Iterable[Rule]) -> list[Rule]:
    """Return one rule for each API group, with the resources of all its rules.

    Raises ValueError if the rules of a group have different verbs, or if a rule has names.
    """
    found: dict[str, Rule] = {}
    for rule in rules:
        before = found.get(rule.group)
        if rule.names or (before is not None and before.verbs != rule.verbs):
            raise ValueError(f"rules of the API group {rule.group!r} differ in verbs or have names: {rule}")
        resources = sorted({*rule.resources, *(before.resources if before else ())})
        found[rule.group] = replace(rule, resources=tuple(resources))
    return list(found.values())


def _rule(rule: Rule) -> Object:
    """Return a rule as Kubernetes' JSON.

    If a rule about Leases has resource names, they are replaced by the account's name, which is also the name of its
    Lease. A rule without names is not restricted by name.
    """
    names = list(rule.names)
    if names and rule.resources == ("leases",):
        names = [ACCOUNT]  # its Lease has its name
    named = {"resourceNames": names} if names else {}
    return {"apiGroups": [rule.group], "resources": list(rule.resources), **named, "verbs": list(rule.verbs)}


def _sizes_only(word: str, kind: KindRights) -> list[Object]:
    """Return a policy and its binding: the account may change only the sizes and our annotations of this kind.

    word: the kind's plural, part of the policy's name.
    """
    sizes = kind.sizes or ()
    says = f"the autoscaler may change {', '.join([*sizes, f'annotations of {ANNOTATION_PREFIX}'])} only"
    check = policies.changes_only(sizes, f"key.startsWith('{ANNOTATION_PREFIX}')")
    rule = (kind.group, kind.resource, ["UPDATE"])  # a patch is one too
    return policies.policy(f"{ACCOUNT}-resizes-{word}-only", rule, says, check)


def _notes_only() -> list[Object]:
    """Return a policy and its binding: the account may change only the annotations in POD_NOTES of a pod."""
    says = f"the autoscaler may change the annotations {', '.join(POD_NOTES)} of a pod only"
    check = policies.changes_only((), f"key in {list(POD_NOTES)}")
    return policies.policy(f"{ACCOUNT}-marks-pods-only", ("", "pods", ["UPDATE"]), says, check)


def _taint_only() -> list[Object]:
    """Return a policy and its binding: the account may change only our taint and our annotation of nodes."""
    says = f"the autoscaler may change the taint {labels.FAULTY} of a node and the annotation {labels.NODE_RECORD} only"
    allowed = policies.changes_only(("spec.taints",), f"key == '{labels.NODE_RECORD}'")
    unchanged = policies.others_stay("spec.taints", f"each.key != '{labels.FAULTY}'")
    rule = ("", "nodes", ["UPDATE"])
    return policies.policy(f"{ACCOUNT}-taints-nodes-only", rule, says, f"{allowed}\n&& {unchanged}")


def _status_only() -> list[Object]:
    """Return a policy and its binding: the account may write only ConfigMaps of its own.

    The topology ConfigMap is in the same namespace, and RBAC cannot match the beginning of a name.
    """
    name = "(request.operation == 'DELETE' ? oldObject : object).metadata.name"
    check = f"{name}.startsWith('{PREFIX}') || {name} == '{MEMORY}'"
    rule = ("", "configmaps", ["CREATE", "UPDATE", "DELETE"])
    says = f"the autoscaler may write ConfigMaps whose names begin with {PREFIX}, and {MEMORY}, only"
    return policies.policy(f"{ACCOUNT}-tells-of-queues-only", rule, says, check)


def template(objects: Sequence[Object], component: str, condition: str) -> str:
    """Return the objects as a template of the chart, with the release's names, namespace and labels.

    component: of the chart. condition: template expression that must be true for the objects to exist.
    """
    of = f'(list . "{component}")'
    text = dump_yaml(objects, {"LABELS": component})
    text = text.replace(policies.BY_ACCOUNT, f'{{{{ include "turnout.byAccount" {of} }}}}')
    text = re.sub(r"labels: \{LABELS: \w+\}", f'labels: {{{{- include "turnout.labels" {of} | nindent 4 }}}}', text)
    text = text.replace(NAMESPACE, "{{ .Release.Namespace }}").replace(ACCOUNT, "{{ $name }}")
    text = text.replace(SUBJECT, f'{{{{ include "turnout.accountName" {of} }}}}')
    name = f'{{{{- $name := include "turnout.name" {of} }}}}\n'
    return f"{{{{- if {condition} }}}}\n{name}{text}{{{{- end }}}}\n"


def dump_yaml(objects: Sequence[Object], marks: Object) -> str:
    """Return the objects as YAML, each with the labels `marks`."""
    marked = [{**each, "metadata": {**each["metadata"], "labels": marks}} for each in objects]
    text: str = yaml.dump_all(marked, Dumper=_ReadableDumper, sort_keys=False, width=1000, default_flow_style=None)
    return text


class _ReadableDumper(yaml.SafeDumper):
    """Writes YAML as people write it: indented lists, CEL in blocks of lines, and no anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _mapping(dumper: yaml.SafeDumper, value: Object) -> yaml.Node:
    long = any(isinstance(each, str) and len(each) > 50 for each in value.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=False if long else None)


def _word(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_ReadableDumper.add_representer(dict, _mapping)
_ReadableDumper.add_representer(str, _word)

if __name__ == "__main__":
    sys.exit(main())

"""Write the autoscaler's roles and policies from autoscaler/rbac_rules.py: `python -m hack.codegen.rbac`.

tests/deploy holds that the files are up to date, and what the roles allow.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from hack.codegen import policies
from turnout.autoscaler.rbac_rules import (
    GIVEN,
    KINDS,
    LEAD,
    MARK_PODS,
    MEMORY,
    NOTES,
    OBSERVE,
    POD_NOTES,
    TAINT_NODES,
    TELL,
    KindRights,
    Rule,
)
from turnout.autoscaler.reporting.queue_status import PREFIX
from turnout.kube import labels

FOLDER = Path("deploy/manifests/autoscaler")
AUTOSCALER, NAMESPACE = "turnout-autoscaler", "turnout-system"
HEAD = "# Written by `python -m hack.codegen.rbac` from autoscaler/rbac_rules.py: change it there.\n"
Object = dict[str, Any]


def files() -> dict[str, str]:
    """Give the text of each file, by its path in FOLDER."""
    own = [("-given", GIVEN), ("-status", TELL), ("-lease", LEAD)]
    found = {
        "base/roles.yaml": [*_granted("", OBSERVE), *(each for end in own for each in _granted(*end, NAMESPACE))],
        "base/policy.yaml": _status_only(),
        "mark-pods/role.yaml": [*_granted("-mark-pods", MARK_PODS), *_notes_only()],
        "taint-nodes/role.yaml": [*_granted("-taint-nodes", TAINT_NODES), *_taint_only()],
    }
    for name, kind in KINDS.items():
        if kind.writes:
            word = name.lower()
            found[f"act/resize-{word}.yaml"] = [*_granted(f"-resize-{word}", kind.writes), *_sizes_only(word, kind)]
    return {path: HEAD + text(objects) for path, objects in found.items()}


def main() -> int:
    """Write them all."""
    for path, whole in files().items():
        (FOLDER / path).parent.mkdir(parents=True, exist_ok=True)
        (FOLDER / path).write_text(whole)
    return 0


def _granted(end: str, rules: Sequence[Rule], namespace: str = "") -> list[Object]:
    """A role and its binding to the autoscaler's account: everywhere, or in one namespace."""
    group = "rbac.authorization.k8s.io"
    meta = {"name": AUTOSCALER + end, **({"namespace": namespace} if namespace else {})}
    kind = "Role" if namespace else "ClusterRole"
    role = {"apiVersion": f"{group}/v1", "kind": kind, "metadata": meta, "rules": [_rule(rule) for rule in rules]}
    return [
        role,
        {
            "apiVersion": f"{group}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": group, "kind": kind, "name": AUTOSCALER + end},
            "subjects": [{"kind": "ServiceAccount", "name": AUTOSCALER, "namespace": NAMESPACE}],
        },
    ]


def _rule(rule: Rule) -> Object:
    names = {"resourceNames": list(rule.names)} if rule.names else {}
    return {"apiGroups": [rule.group], "resources": list(rule.resources), **names, "verbs": list(rule.verbs)}


def _sizes_only(word: str, kind: KindRights) -> list[Object]:
    sizes = kind.sizes or ()
    says = f"the autoscaler may change {', '.join([*sizes, f'annotations of {NOTES}'])} only"
    check = policies.only(sizes, f"key.startsWith('{NOTES}')")
    rule = (kind.group, kind.resource, ["UPDATE"])  # a patch is one too
    return policies.policy(f"{AUTOSCALER}-resizes-{word}-only", AUTOSCALER, rule, says, check)


def _notes_only() -> list[Object]:
    says = f"the autoscaler may change the annotations {', '.join(POD_NOTES)} of a pod only"
    check = policies.only((), f"key in {list(POD_NOTES)}")
    return policies.policy(f"{AUTOSCALER}-marks-pods-only", AUTOSCALER, ("", "pods", ["UPDATE"]), says, check)


def _taint_only() -> list[Object]:
    says = f"the autoscaler may change the taint {labels.FAULTY} of a node and the annotation {labels.NODE_RECORD} only"
    allowed = policies.only(("spec.taints",), f"key == '{labels.NODE_RECORD}'")
    kept = policies.others_stay("spec.taints", f"each.key != '{labels.FAULTY}'")
    rule = ("", "nodes", ["UPDATE"])
    return policies.policy(f"{AUTOSCALER}-taints-nodes-only", AUTOSCALER, rule, says, f"{allowed}\n&& {kept}")


def _status_only() -> list[Object]:
    """The map of the switches lies beside the autoscaler's ConfigMaps, and RBAC knows whole names only."""
    name = "(request.operation == 'DELETE' ? oldObject : object).metadata.name"
    check = f"{name}.startsWith('{PREFIX}') || {name} == '{MEMORY}'"
    rule = ("", "configmaps", ["CREATE", "UPDATE", "DELETE"])
    says = f"the autoscaler may write ConfigMaps whose names begin with {PREFIX}, and {MEMORY}, only"
    return policies.policy(f"{AUTOSCALER}-tells-of-queues-only", AUTOSCALER, rule, says, check)


def text(objects: Sequence[Object], program: str = AUTOSCALER) -> str:
    """Objects of one of our programs as a file has them."""
    marks = {"app.kubernetes.io/name": program, "app.kubernetes.io/part-of": "turnout"}
    marked = [{**each, "metadata": {**each["metadata"], "labels": marks}} for each in objects]
    made: str = yaml.dump_all(marked, Dumper=_Plain, sort_keys=False, width=1000, default_flow_style=None)
    return made


class _Plain(yaml.SafeDumper):
    """YAML as people write it: lists set in, CEL in blocks of lines, nothing said once and pointed at."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _mapping(dumper: yaml.SafeDumper, value: Object) -> yaml.Node:
    long = any(isinstance(each, str) and len(each) > 50 for each in value.values())
    return dumper.represent_mapping("tag:yaml.org,2002:map", value, flow_style=False if long else None)


def _word(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Plain.add_representer(dict, _mapping)
_Plain.add_representer(str, _word)

if __name__ == "__main__":
    sys.exit(main())

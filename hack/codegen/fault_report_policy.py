"""Write the policy that guards pods' verdicts on their nodes: `python -m hack.codegen.fault_report_policy`.

tests/deploy checks that the file is up to date, and what the policy lets an account do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hack.codegen import policies, rbac
from turnout.kube import labels

FILE = Path("deploy/manifests/launcher/guard-verdicts.yaml")
IN_CHART = rbac.FOLDER / "autoscaler/guard-verdicts.yaml"  # beside the autoscaler that believes them
NAME = "turnout-verdicts-of-the-pod-itself-only"
HEAD = f"""# Written by `python -m hack.codegen.fault_report_policy`. An administrator of the cluster installs it once (Kubernetes 1.30+).
# In each namespace without the label {labels.GUARDED}=false: a verdict on a node is written by no one but
# the pod that is there, with its own token. With the label true: the accounts of that namespace change nothing else of pods.
"""  # noqa: E501
_ITSELF = "authentication.kubernetes.io/pod-uid"  # what the API server knows of a token that is bound to a pod


_CHANGED = "pods,pods/status,pods/ephemeralcontainers,pods/resize"  # a write of each may change annotations
_EVERYWHERE = {"matchExpressions": [{"key": labels.GUARDED, "operator": "NotIn", "values": ["false"]}]}


def generate_policies() -> list[policies.Tree]:
    """Return three policies, each followed by its binding. The first two hold in each namespace without GUARDED=false,
    the third in namespaces with GUARDED=true.
    """
    note = labels.NODE_VERDICT
    own = f"has(request.userInfo.extra) && '{_ITSELF}' in request.userInfo.extra"
    own = f"{own} && request.userInfo.extra['{_ITSELF}'].exists(uid, uid == object.metadata.uid)"
    same = f"(('{note}' in variables.notesBecome) == ('{note}' in variables.notesWere)"
    same = f"{same} && (!('{note}' in variables.notesBecome) || {_value('Become')} == {_value('Were')}))"
    theirs = "('system:serviceaccounts:' + request.namespace) in request.userInfo.groups"
    little = policies.changes_only((), f"key == '{note}'")
    itself = policies.guard(
        NAME,
        ("", _CHANGED, ["UPDATE"]),
        _EVERYWHERE,
        ((f"the annotation {note} is written by the pod itself only, with its own token", f"{same}\n|| ({own})"),),
    )
    first = policies.guard(
        f"{NAME}-from-the-start",
        ("", "pods", ["CREATE"]),
        _EVERYWHERE,
        (
            (
                f"a pod is not made with the annotation {note}: it writes it itself",
                f"!('{note}' in variables.notesBecome)",
            ),
        ),
    )
    nothing_else = policies.guard(
        f"{NAME}-and-nothing-else",
        ("", _CHANGED, ["UPDATE"]),
        {"matchLabels": {labels.GUARDED: "true"}},
        (
            (
                f"an account of this namespace may change its own pod only, and of it the annotation {note}",
                f"!({theirs})\n|| ({own}\n&& {little})",
            ),
        ),
    )
    return [*itself, *first, *nothing_else]


def _value(which: str) -> str:
    return f"variables.notes{which}['{labels.NODE_VERDICT}']"


def files() -> dict[Path, str]:
    """Return the text of each file, by its path."""
    marks = {"app.kubernetes.io/name": "turnout-run", "app.kubernetes.io/part-of": "turnout"}
    condition = "and .Values.autoscaler.enabled .Values.autoscaler.guardVerdicts"
    head = "{{- /* Written by `python -m hack.codegen.fault_report_policy`: change it there. */}}\n"
    return {
        FILE: HEAD + rbac.dump_yaml(generate_policies(), marks),
        IN_CHART: head + rbac.template(generate_policies(), "run", condition),
    }


def main() -> int:
    """Write the files of both policies. Return 0."""
    for file, text in files().items():
        file.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

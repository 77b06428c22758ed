"""Write the policy that guards pods' verdicts on their nodes: `python -m hack.codegen.fault_report_policy`.

tests/deploy holds that the file is up to date, and what the policy lets an account do.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hack.codegen import policies
from hack.codegen.rbac import text
from turnout.kube import labels

FILE = Path("deploy/manifests/launcher/guard-verdicts.yaml")
NAME = "turnout-verdicts-of-the-pod-itself-only"
HEAD = f"""# Written by `python -m hack.codegen.fault_report_policy`. An administrator of the cluster installs it once (Kubernetes 1.30+).
# In each namespace with the label {labels.GUARDED}=true: a verdict on a node is written by no one but
# the pod that is there, with its own token; and the accounts of that namespace change nothing else of pods.
"""  # noqa: E501
_ITSELF = "authentication.kubernetes.io/pod-uid"  # what the API server knows of a token that is bound to a pod


def made() -> list[policies.Tree]:
    """The policy and its binding."""
    note = labels.NODE_VERDICT
    own = f"has(request.userInfo.extra) && '{_ITSELF}' in request.userInfo.extra"
    own = f"{own} && request.userInfo.extra['{_ITSELF}'].exists(uid, uid == object.metadata.uid)"
    same = f"(('{note}' in variables.notesBecome) == ('{note}' in variables.notesWere)"
    same = f"{same} && (!('{note}' in variables.notesBecome) || {_value('Become')} == {_value('Were')}))"
    theirs = "('system:serviceaccounts:' + request.namespace) in request.userInfo.groups"
    little = policies.only((), f"key == '{note}'")
    return policies.guard(
        NAME,
        ("", "pods", ["UPDATE"]),
        {"matchLabels": {labels.GUARDED: "true"}},
        (
            (f"the annotation {note} is written by the pod itself only, with its own token", f"{same}\n|| ({own})"),
            (
                f"an account of this namespace may change its own pod only, and of it the annotation {note}",
                f"!({theirs})\n|| ({own}\n&& {little})",
            ),
        ),
    ) + policies.guard(
        f"{NAME}-from-the-start",
        ("", "pods", ["CREATE"]),
        {"matchLabels": {labels.GUARDED: "true"}},
        (
            (
                f"a pod is not made with the annotation {note}: it writes it itself",
                f"!('{note}' in variables.notesBecome)",
            ),
        ),
    )


def _value(which: str) -> str:
    return f"variables.notes{which}['{labels.NODE_VERDICT}']"


def whole() -> str:
    """The file as it is to be."""
    return HEAD + text(made(), "turnout-run")


def main() -> int:
    """Write it."""
    FILE.write_text(whole())
    return 0


if __name__ == "__main__":
    sys.exit(main())

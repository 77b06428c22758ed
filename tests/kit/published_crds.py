"""CRDs as other projects publish them: tests/crds, and what the training-operator's module brings."""

from pathlib import Path

import yaml

from hack.controlplane.tools import cache

CRDS = Path(__file__).parents[1] / "crds"


def published(project, name):
    """A project's own CRD. name: its file, GROUP_PLURAL."""
    return yaml.load((CRDS / project / f"{name}.yaml").read_text(), yaml.CSafeLoader)


def find(group, plural):
    """The CRD of a kind that some project publishes here, None of others."""
    if (group, plural) == ("kubeflow.org", "pytorchjobs"):
        return yaml.load((cache.training_crds() / "kubeflow.org_pytorchjobs.yaml").read_text(), yaml.CSafeLoader)
    found = sorted(CRDS.glob(f"*/{group}_{plural}.yaml"))
    return yaml.load(found[0].read_text(), yaml.CSafeLoader) if found else None

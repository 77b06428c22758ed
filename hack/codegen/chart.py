"""Write what the chart is made of beside its templates, and the manifests that are rendered from it.

`python -m hack.codegen.chart` copies CRDs, alerts and dashboards into the chart, which helm packs as one folder, writes
the table of values into its README, and renders deploy/manifests. tests/deploy checks that all of it is up to date.
"""

from __future__ import annotations

import json
import operator
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from hack.controlplane.tools import cache

ROOT = Path(__file__).parents[2]
CHART = Path("deploy/charts/turnout")
MANIFESTS = Path("deploy/manifests")
GOLDEN = Path("tests/deploy/chart/golden")
WHOLE = ("default", "everything")  # profiles whose golden is whole; the others are diffs to the default's
NAMESPACE, RELEASE = "turnout-system", "turnout"
KUBERNETES = "1.35.0"
PROGRAMS = (
    "extender",
    "nominator",
    "autoscaler",
    "controller",
    "scheduler",
    "page",
)  # each has a Deployment and values
TABLE = ("<!-- values -->\n", "<!-- end of values -->\n")
# Manifests are applied as they are, or moved by kustomize; certificates and the map are made beside them.
ALWAYS = {"guards": "anyNamespace", "extender.tls.create": "false", "topoMapper.create": "false"}
_OFF = {f"{part}.enabled": "false" for part in ("extender", "nominator", "autoscaler", "controller")}
_NOBODY = {"rbac.viewer": "false", "rbac.queueAdmin": "false"}
_AUTOSCALER = {**_OFF, "autoscaler.enabled": "true"}
CONTROLLER = {
    **_OFF,
    **_NOBODY,
    "controller.enabled": "true",
    "controller.image": RELEASE,
    "dlroverMaster.enabled": "false",
}
_CONTROLLED = "{PyTorchJob,ElasticJob,MSJob,ColossalAIJob}"
DLROVER = "--values=examples/values-dlrover.yaml"  # the kinds that the guides of DLRover and MindSpore have
_KINDS = (
    "ElasticJob",
    "Job",
    "LeaderWorkerSet",
    "MPIJob",
    "MSJob",
    "PyTorchJob",
    "PyTorchJob.ctyun.cn",
    "RayCluster",
    "VolcanoJob",
)
Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Profile:
    """Values with which people install the chart, and what for."""

    values: Mapping[str, str]
    kubernetes: str = KUBERNETES
    release: str = RELEASE
    more: tuple[str, ...] = ()  # further arguments of helm


_GATES = {"nominator.enabled": "true", "nominator.gates": "true", "nominator.gatePods": "true"}
PROFILES = {
    "default": Profile({}),
    "everything": Profile(
        {
            **_GATES,
            "nominator.annotateSwitchPath": "true",
            "nominator.preempt": "true",
            "nominator.repair": "true",
            "nominator.readQueues": "true",
            "nominator.failOpenAfterSeconds": "600",
            "autoscaler.act": "true",
            "autoscaler.markPods": "true",
            "autoscaler.taintNodes": "true",
            "controller.kinds": "{PyTorchJob,ElasticJob,MSJob,ColossalAIJob}",
            "controller.gang": "volcano",
            "controller.gatePods": "true",
            "scheduler.enabled": "true",
            "page.enabled": "true",
            "monitoring.podMonitors": "true",
            "monitoring.rules": "true",
        },
        "1.37.0",
    ),
    "managed-gates": Profile({**_GATES, "extender.enabled": "false"}),
    "dlrover": Profile({"registry": "registry.example.org/mirror"}, release="dlrover", more=(DLROVER,)),
}


class HelmRefused(Exception):
    """Helm rejected the chart or its values. The message is Helm's error text."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How helm renders one file of manifests."""

    values: Mapping[str, str]
    without: Mapping[str, str] | None = None  # the values whose objects the file leaves out
    head: str = ""  # objects that come first
    more: tuple[str, ...] = ()  # further arguments of helm


def manifests() -> dict[str, Recipe]:
    """Return, for each file that helm renders below the folder MANIFESTS, how it is rendered.

    The keys are paths relative to MANIFESTS. Raises OSError if namespace.yaml is missing.
    """
    nominator = {**_OFF, **_NOBODY, "nominator.enabled": "true"}
    found = {
        "extender.yaml": Recipe({**_OFF, **_NOBODY, "extender.enabled": "true"}),
        "nominator/nominator.yaml": Recipe(nominator),
        "nominator/switch-path/role.yaml": Recipe({**nominator, "nominator.annotateSwitchPath": "true"}, nominator),
        "autoscaler/base/autoscaler.yaml": Recipe(_AUTOSCALER),
        "autoscaler/mark-pods/role.yaml": Recipe({**_AUTOSCALER, "autoscaler.markPods": "true"}, _AUTOSCALER),
        "autoscaler/taint-nodes/role.yaml": Recipe({**_AUTOSCALER, "autoscaler.taintNodes": "true"}, _AUTOSCALER),
        "controllers/controller.yaml": Recipe(
            {**CONTROLLER, "controller.crds": "false", "controller.kinds": _CONTROLLED}
        ),
    }
    acts = {**_AUTOSCALER, "autoscaler.act": "true", "autoscaler.kinds": "null"}
    found["autoscaler/act/gang-mins.yaml"] = Recipe(acts, _AUTOSCALER)
    for kind in _KINDS:
        resizes = {**acts, "autoscaler.kinds": f"{{{kind}}}"}
        found[f"autoscaler/act/resize-{kind.lower()}.yaml"] = Recipe(resizes, acts)
    head = (ROOT / MANIFESTS / "namespace.yaml").read_text() + "---\n"
    found["controllers/install.yaml"] = Recipe({**CONTROLLER, "rbac.viewer": "true"}, head=head, more=(DLROVER,))
    return found


def copies() -> dict[Path, str]:
    """Return the text of each chart file that is a copy of another file in deploy, by its path."""
    found = {
        CHART / "files/crds" / each.name: each.read_text() for each in sorted((ROOT / "deploy/crds").rglob("*.yaml"))
    }
    found[CHART / "files/rules.yaml"] = (ROOT / "deploy/prometheus/rules.yaml").read_text()
    for each in sorted((ROOT / "deploy/grafana").glob("*.json")):
        found[CHART / "files/dashboards" / each.name] = each.read_text()
    return found


def files() -> dict[Path, str]:
    """Return the text of every generated file that is no copy, by its path.

    Raises NotBuilt without helm, and HelmRefused if helm does not take the chart or its values.
    """
    text = (ROOT / CHART / "README.md").read_text()
    before, _, rest = text.partition(TABLE[0])
    after = rest.partition(TABLE[1])[2]
    found = {CHART / "README.md": before + TABLE[0] + table() + TABLE[1] + after}
    for path, each in manifests().items():
        found[MANIFESTS / path] = render_manifest(each)
    default = render_golden(PROFILES["default"])
    for name, profile in PROFILES.items():
        if name in WHOLE:
            found[GOLDEN / f"{name}.yaml"] = render_golden(profile)
        else:
            found[GOLDEN / f"{name}.diff"] = _difference(default, render_golden(profile))
    return found


def helm(*arguments: str) -> str:
    """Run helm and return its output. Raises HelmRefused with its error message, and NotBuilt if helm is not built."""
    done = subprocess.run(
        [cache.binary("helm"), *arguments], capture_output=True, text=True, timeout=120, check=False, cwd=ROOT
    )
    if done.returncode:
        raise HelmRefused(done.stderr.strip())
    return done.stdout


def render(
    values: Mapping[str, str], *more: str, namespace: str = NAMESPACE, release: str = RELEASE, tests: bool = False
) -> str:
    """Return the manifests that the chart renders with these values.

    more: further arguments of helm. namespace, release: name of the release and its namespace. tests: include the pod
    of `helm test`. Raises HelmRefused and NotBuilt as `helm` does.
    """
    arguments = [f"--set={key}={value}" for key, value in values.items()]
    where = (f"--namespace={namespace}", f"--kube-version={KUBERNETES}", *(() if tests else ("--skip-tests",)))
    return helm("template", release, str(CHART), *where, *arguments, *more)


def render_manifest(recipe: Recipe) -> str:
    """Return the text of one manifest, rendered by helm from the chart.

    Objects that are also rendered with `recipe.without` are left out. Raises HelmRefused and NotBuilt as `helm` does.
    """
    out = set() if recipe.without is None else {_key(each) for each in documents(render({**ALWAYS, **recipe.without}))}
    selected = [
        text
        for text in re.split(r"^---\n", render({**ALWAYS, **recipe.values}, *recipe.more), flags=re.M)
        if (found := yaml.load(text, yaml.CSafeLoader)) and _key(found) not in out
    ]
    head = f"# Rendered from {CHART} by `python -m hack.codegen.chart`: change it there.\n"
    return head + recipe.head + "---\n".join(_without_helm_marks(text) for text in selected)


def render_golden(profile: Profile) -> str:
    """Return the manifests that the chart renders for a profile, so that a reviewer sees the effect of a change.

    The CustomResourceDefinitions are left out, since they are copies, and the keys that helm generates are replaced by
    a constant. Raises HelmRefused and NotBuilt as `helm` does.
    """
    text = render(profile.values, f"--kube-version={profile.kubernetes}", *profile.more, release=profile.release)
    text = "---\n".join(each for each in re.split(r"(?m)^---\n", text) if "kind: CustomResourceDefinition" not in each)
    generated_keys = r"ca\.crt|tls\.crt|tls\.key|caBundle|turnout\.dev/valid-until"
    masked = re.sub(rf"(?m)^(\s*(?:{generated_keys}): ).*$", r"\1MADE-BY-HELM", text)
    return f"# Rendered from {CHART} by `python -m hack.codegen.chart`: change it there.\n{masked}"


def _difference(default: str, text: str) -> str:
    """Return the unified diff from the manifest of the default profile to `text`, with one line of context."""
    return "\n".join(unified_diff(default.splitlines(), text.splitlines(), n=1, lineterm="")) + "\n"


def documents(text: str) -> list[Object]:
    """Return the objects of a YAML text."""
    return [each for each in yaml.load_all(text, yaml.CSafeLoader) if each]


def _key(found: Object) -> tuple[str, str]:
    return found["kind"], found["metadata"]["name"]


def _without_helm_marks(text: str) -> str:
    """Return rendered manifests without helm's labels, its `# Source` comments and empty lines.

    Users apply these manifests without helm. Such a line of a block scalar is removed, too.
    """
    lines = [
        line.rstrip()
        for line in text.splitlines()
        if not re.match(r"# Source: |\s*(app\.kubernetes\.io/managed-by|helm\.sh/chart):", line) and line.strip()
    ]
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return the Markdown table of the chart's values, with their comments in values.yaml.

    A value that all programs, or all but one, have with the same meaning and default is one row, `PROGRAM.key`.
    """
    found = list(values())
    same = Counter((_shared_key(key), text, default) for key, text, default in found)
    is_renamed = {}  # each row once, in order
    for key, text, default in found:
        shared = _shared_key(key)
        name = shared if same[(shared, text, default)] >= len(PROGRAMS) - 1 else key
        is_renamed[f"| `{name}` | {text} | `{default}` |\n"] = name != key
    rows = sorted(is_renamed, key=is_renamed.__getitem__)  # those of every program last
    return "".join(["| value | meaning | default |\n", "| --- | --- | --- |\n", *rows])


def _shared_key(key: str) -> str:
    part, _, rest = key.partition(".")
    return f"PROGRAM.{rest}" if part in PROGRAMS and rest else key


def values(text: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield (path, comment, default as JSON) of each value that has a comment. `|` in a comment is escaped for a table.

    text: of a values.yaml; "" for the chart's own.
    """
    text = text or (ROOT / CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    above: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        indent, words = len(line) - len(line.lstrip()), line.strip()
        if words.startswith("# --"):
            comment = [words.removeprefix("# --").strip()]
        elif words.startswith("#") and comment:
            comment.append(words.removeprefix("#").strip())
        elif match := re.match(r"([\w-]+):(\s|$)", words):
            above = [*above[: indent // 2], match[1]]
            if comment:
                default = json.dumps(reduce(operator.getitem, above, defaults))
                yield ".".join(above), " ".join(comment).replace("|", "\\|"), default
            comment = []


def main(argv: Sequence[str] | None = None) -> int:
    """Write all generated files: first the copies, since the others are rendered from them. Return 0. argv: unused."""
    for generate in (copies, files):
        for path, text in generate().items():
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

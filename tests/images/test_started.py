"""The images, built from the locks and started: as their user, on a read-only root, against a real kube-apiserver."""

import base64
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

import pytest
import yaml

from hack.controlplane.plane import free_ports
from hack.images import python_wheels
from hack.images.oci import write
from hack.images.recipes import IMAGES, Sources
from hack.images.rootfs import command, unpack_image, why_not_runnable
from hack.images.wheels import ROOT, SOURCES, build

pytestmark = [
    pytest.mark.long,  # half a minute of bytecode for each build
    pytest.mark.timeout(600),
    pytest.mark.debian("util-linux"),
]
COMMIT = "5af553b1d5a7c8e2f0a1b2c3d4e5f60718293a4b"
STARTS = {
    "turnout-extender": ("--bind=127.0.0.1:0",),
    "turnout-nominator": (),
    "turnout-autoscaler": (),
    "turnout-controller": ("--kinds=PyTorchJob,ElasticJob,MSJob,ColossalAIJob",),
    "turnout": ("page", "--serve", "--listen=127.0.0.1:0"),
}


@pytest.fixture(scope="module")
def layout(tmp_path_factory):
    sources = Sources("0.1.0", COMMIT, python_wheels.cache_folder())

    def built(name):
        into = tmp_path_factory.mktemp("images") / name
        return into, write(IMAGES[name](sources), into)

    return built


@pytest.fixture(scope="module")
def controllers(layout, tmp_path_factory):
    """The unpacked image of the controllers and its configuration."""
    if fault := why_not_runnable():
        pytest.skip(f"not run: let this user make namespaces ({fault})")
    into, named = layout("turnout")
    root = tmp_path_factory.mktemp("unpacked") / "root"
    return unpack_image(into, root), root, named


def ran(controllers, *program):
    config, root, _ = controllers
    return subprocess.run(command(config, root, program), capture_output=True, text=True, timeout=60, check=False)


def test_the_same_tree_gives_the_same_digest(controllers, layout):
    assert layout("turnout")[1] == controllers[2]


LOOKS = """
import importlib.util, os, ssl
print(os.getuid(), os.getgid(), *(os.access(path, os.W_OK) for path in ("/", "/usr", "/etc", "/tmp")))
print(*(name for name in ("torch", "pip", "setuptools") if importlib.util.find_spec(name)))
print(*(path for path in ("/bin/sh", "/bin/bash", "/usr/bin/dpkg") if os.path.exists(path)))
print(len(ssl.create_default_context().get_ca_certs()) > 100)
"""


def test_it_is_not_root_writes_to_tmp_alone_and_holds_no_shell(controllers):
    done = ran(controllers, "python3", "-c", LOOKS)
    assert done.stdout == "65532 65532 False False False True\n\n\nTrue\n", done.stderr


@pytest.mark.parametrize("program", STARTS)
def test_a_program_of_the_image_tells_its_version_and_commit(controllers, program):
    done = ran(controllers, program, "--version")
    assert (done.stdout, done.stderr) == (f"{program} 0.1.0 ({COMMIT[:12]})\n", "")


def test_every_module_has_its_bytecode(controllers):
    _, root, _ = controllers
    site = root / "usr/local/lib/python3.11/dist-packages/turnout"
    sources = {file.relative_to(site) for file in site.rglob("*.py")}
    bytecode_files = {file.relative_to(site) for file in site.rglob("*.pyc")}
    assert len(sources) > 300
    assert {file.parent / "__pycache__" / f"{file.stem}.cpython-311.pyc" for file in sources} == bytecode_files


@pytest.mark.real
@pytest.mark.contract("MS-14", "MS-34")
def test_the_controllers_get_ready_on_a_real_api_server(controllers, control_plane, tmp_path):
    config, root, _ = controllers
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "turnout-system"}}
    control_plane.request("POST", "/api/v1/namespaces", namespace)
    for file in sorted((ROOT / "deploy/crds").glob("*.yaml")):
        definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        control_plane.request("POST", definitions, yaml.safe_load(file.read_text()))
    given = tmp_path / "given"
    given.mkdir(mode=0o755)
    (given / "kubeconfig").write_text(inside(control_plane.kubeconfig))
    (given / "kubeconfig").chmod(0o644)
    for (program, arguments), port in zip(STARTS.items(), free_ports(len(STARTS)), strict=True):
        at = f"127.0.0.1:{port}"
        started = (program, *arguments, "--kubeconfig=/run/kube/kubeconfig", f"--metrics-bind={at}")
        argv = command(config, root, started, {given: "kube"})
        pid = control_plane.start_program(program, argv, f"http://{at}/readyz")
        with urllib.request.urlopen(f"http://{at}/metrics", timeout=10) as page:
            component = "page" if program == "turnout" else program.removeprefix("turnout-")
            build_info = f'turnout_build_info{{commit="{COMMIT}",component="{component}",version="0.1.0"}} 1.0'
            assert build_info in page.read().decode().splitlines()
        assert Path(f"/proc/{pid}/root").readlink() == root
        control_plane.stop_program(program)


def inside(kubeconfig):
    """The kubeconfig with the files that it names in it, as an image does not see them."""
    read = yaml.safe_load(kubeconfig.read_text())
    for part in (read["clusters"][0]["cluster"], read["users"][0]["user"]):
        for key in [key for key in part if key in ("certificate-authority", "client-certificate", "client-key")]:
            part[f"{key}-data"] = base64.b64encode(Path(part.pop(key)).read_bytes()).decode()
    return yaml.safe_dump(read)


def test_a_training_image_runs_scripts_by_what_it_copies(layout, tmp_path):
    """The lines of deploy/images/README.md: /opt/turnout copied, one line in a .pth file, its programs on PATH."""
    into, _ = layout("turnout-launcher")
    unpack_image(into, tmp_path / "root")
    venv.create(tmp_path / "training", with_pip=False, symlinks=True)
    python = tmp_path / "training/bin/python3"
    site = tmp_path / "training/lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "turnout.pth").write_text(f"{tmp_path}/root/opt/turnout/lib\n")
    (tmp_path / "train.py").write_text(
        "import os, numpy, turnout.launcher.checkpoint.format.manifest\nprint(os.environ['RANK'], numpy.__file__)\n"
    )
    env = {"PATH": f"{tmp_path}/root/opt/turnout/bin:{python.parent}:{os.environ['PATH']}"}
    argv = ["turnout-run", "--standalone", "--nproc-per-node=1", "train.py"]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"0 {tmp_path}/root/opt/turnout/lib/numpy/__init__.py\n"
    names = tmp_path / "root/opt/turnout/dlrover-names"
    assert {file.name for file in names.iterdir()} == {"dlrover-run", "xpu_timer_launch", "xpu_timer_stacktrace_viewer"}
    assert sys.version_info[:2] == (3, 11), "the image is for Python 3.11"


def run_lines(name, below, python):
    """Run the RUN lines of a Containerfile with every folder of its own below another; what it copies is put there."""
    text = (ROOT / f"deploy/images/{name}.Containerfile").read_text()
    (script,) = re.findall(r"^RUN (.*?[^\\])$", text, re.M | re.S)
    script = re.sub(r"(?<=\s)/(wheels|needed|ours|names|opt)\b", rf"{below}/\1", script)
    (below / "wheels").mkdir(parents=True)
    (lock,) = re.findall(r"^COPY (hack/locks/\S+) build/wheels/ /wheels/$", text, re.M)
    shutil.copy(ROOT / lock, below / "wheels")
    for source in SOURCES:
        build(below / "wheels", source)
    env = os.environ | {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-ec", script], check=True, env=env, timeout=500)
    return below / "opt/turnout"


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """A Python with pip and nothing else, as in the image that a Containerfile starts from."""
    folder = tmp_path_factory.mktemp("python")
    venv.create(folder, with_pip=True, symlinks=True)
    return folder / "bin/python"


@pytest.mark.contract("MS-14")
def test_the_controllers_containerfile_installs_every_program(tmp_path, python):
    root = run_lines("controllers", tmp_path, python)
    for program in STARTS:
        done = subprocess.run(
            [root / "bin" / program, "--help"], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


def test_the_launchers_containerfile_makes_what_the_builder_makes(tmp_path, python, layout):
    into, _ = layout("turnout-launcher")
    unpack_image(into, tmp_path / "root")
    their_root, ours = run_lines("launcher", tmp_path / "lines", python), tmp_path / "root/opt/turnout"
    programs = {"turnout", "kubectl-turnout", "turnout-run", "turnout-extender", "py-spy"}
    assert programs <= {file.name for file in (their_root / "bin").iterdir()}
    for folder in ("bin", "dlrover-names", "lib/turnout", "lib/msgspec"):
        assert modules(their_root / folder) == modules(ours / folder)
    assert (their_root / "bin/turnout-run").read_text().startswith("#!/usr/bin/env python3\n")


def modules(folder):
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file() and file.suffix != ".pyc"}

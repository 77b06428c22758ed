"""Each newer Python that is here: the wheel's demo, and the tests that need no torch, run on the wheel."""

import glob
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from hack.images.wheels import ROOT, build
from tests.kit.wheels import run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
CLASSIFIER = re.compile(r"Python :: (3\.\d+)$", re.M)
# Rooms whose tests need neither torch nor the checkout: 2,900 tests.
TESTED = ("topology", "jobs", "kube", "autoscaler", "scheduler_ext", "controllers")
PACKAGES = ("autoscaler", "cli", "controllers", "jobs", "kube", "launcher", "scheduler_ext", "simulator", "topology")


def versions():
    return sorted(set(CLASSIFIER.findall((ROOT / "setup.cfg").read_text())))


def interpreter(version):
    """A Python of this version that can make environments: on PATH, of pyenv or of uv. None if there is none."""
    homes = [f"~/.pyenv/versions/{version}*/bin", f"~/.local/share/uv/python/cpython-{version}.*/bin"]
    folders = [folder for home in homes for folder in sorted(glob.glob(str(Path(home).expanduser())))]
    found = [shutil.which(f"python{version}"), *(f"{folder}/python{version}" for folder in folders)]
    return next((each for each in found if each and _makes_environments(each)), None)


def _makes_environments(python):
    try:
        return subprocess.run([python, "-c", "import ensurepip"], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module", params=versions())
def installed(request, wheel, tmp_path_factory):
    """An environment of this Python, with the wheel and what hack/locks/pythons.txt pins."""
    if (python := interpreter(request.param)) is None:
        pytest.skip(f"not run: install Python {request.param}, as `uv python install {request.param}` does")
    folder = tmp_path_factory.mktemp("environment") / request.param
    subprocess.run([python, "-m", "venv", folder], check=True, timeout=120)
    pip = [folder / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    lock = ["--only-binary", ":all:", "--require-hashes", "-r", ROOT / "hack/locks/pythons.txt"]
    subprocess.run([*pip, *lock], check=True, timeout=900)
    subprocess.run([*pip, "--no-index", "--no-deps", wheel], check=True, timeout=120)
    return folder


def test_the_wheels_demo_runs(installed, tmp_path):
    done = run(installed, "turnout", "demo", "--fast", "--plain", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_tests_that_need_no_torch_pass_on_the_wheel(installed, tmp_path):
    known = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in filter(None, known.stdout.decode().split("\0")):
        if name.split("/")[0] not in (*PACKAGES, "turnout") and (ROOT / name).is_file():
            (to := tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, to)
    folders = [f"tests/{room}" for room in TESTED]
    marks = "not slow and not long and not real"
    done = run(installed, "python", "-m", "pytest", "-q", "-n", "2", "-m", marks, *folders, cwd=tmp_path, timeout=1500)
    assert done.returncode == 0, done.stdout[-6000:]
    (passed,) = re.findall(r"(\d+) passed", done.stdout)
    assert int(passed) > 2500

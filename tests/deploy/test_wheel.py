"""The wheel alone, in an environment that has never seen this checkout."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
ALONE = ("--no-index", "--no-deps")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy of what git knows."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    command = [*PIP, "wheel", *ALONE, "--no-build-isolation", "-w", folder, folder / "source"]
    subprocess.run(command, check=True, timeout=120)
    (built,) = folder.glob("turnout-*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    """An environment with the wheel, whose requirements lie on its path; of this checkout it knows nothing."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    subprocess.run([*PIP, "--python", folder / "bin/python", "install", *ALONE, wheel], check=True, timeout=120)
    # A line of a .pth file adds a folder; the .pth files in that folder, the editable install's too, are not read.
    (site / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def run(clean, *command):
    """Run a command of the environment far away from the checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    program, *arguments = command
    return subprocess.run(
        [clean / "bin" / program, *arguments],
        cwd=clean,
        env=kept,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.contract("DL-28")
@pytest.mark.parametrize("program", ["turnout-run", "dlrover-run", "turnout", "turnout-extender", "turnout-autoscaler"])
def test_after_pip_install_in_a_clean_environment_the_help_ends_with_0(clean, program):
    done = run(clean, program, "--help")
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


@pytest.mark.contract("DL-28")
def test_what_runs_is_the_wheels_and_not_the_checkouts(clean):
    done = run(clean, "python", "-c", "import launcher; print(launcher.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(clean)


def test_the_wheel_holds_no_test_and_no_tool_of_developers(wheel):
    with zipfile.ZipFile(wheel) as opened:
        tops = {name.split("/", 1)[0] for name in opened.namelist()}
    assert tops & {"tests", "hack", "docs", "deploy"} == set()

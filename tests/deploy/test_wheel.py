"""The wheel alone, in an environment that has never seen this checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from hack.lint.architecture import FLOORS

ROOT = Path(__file__).parents[2]
PIP = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
ALONE = ("--no-index", "--no-deps")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel of this checkout, built from a copy of what git knows."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if name.startswith("tests/") or not (ROOT / name).exists():
            continue
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, folder / "source" / name, follow_symlinks=False)
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


def run(clean, *command, cwd=None, **env):
    """Run a command of the environment far away from the checkout."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    program, *arguments = command
    return subprocess.run(
        [clean / "bin" / program, *arguments],
        cwd=cwd or clean,
        env=kept | env,
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
    done = run(clean, "python", "-c", "import turnout.launcher; print(turnout.launcher.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(clean)


def test_the_wheel_takes_one_name_and_has_all_rooms_below_it(wheel):
    with zipfile.ZipFile(wheel) as opened:
        names = [name.split("/") for name in opened.namelist()]
    assert {parts[0] for parts in names if not parts[0].endswith(".dist-info")} == {"turnout"}
    assert {parts[1] for parts in names if parts[0] == "turnout" and len(parts) > 2} == set(FLOORS)


@pytest.fixture
def beside_strangers(tmp_path):
    """A user's folder, whose modules have the names of our rooms. Who imports one of them for ours ends at once."""
    for room in FLOORS:
        (tmp_path / room).mkdir()
        (tmp_path / room / "__init__.py").write_text(f"raise SystemExit('the {room} of the user was imported')\n")
    (tmp_path / "train.py").write_text(TRAINS)
    return tmp_path


TRAINS = """
from turnout import ElasticBatch, ElasticSampler, Steps
print(ElasticSampler(10, seed=1).plan(ElasticBatch(5), world=1, rank=0) is not None, Steps.__name__)
try:
    import jobs
except SystemExit as error:
    print(error)
"""


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("python", "-m", "turnout.launcher", "--help"), id="the launcher as a module"),
        pytest.param(("turnout-run", "--help"), id="the launcher"),
        pytest.param(("turnout-extender", "--help"), id="the extender"),
        pytest.param(("python", "-m", "turnout.scheduler_ext", "--help"), id="the extender as a module"),
        pytest.param(("turnout-nominator", "--help"), id="the nominator"),
        pytest.param(("turnout-autoscaler", "--help"), id="the autoscaler"),
        pytest.param(("turnout", "why", "--help"), id="turnout why"),
        pytest.param(("python", "-m", "turnout.cli", "--help"), id="the command as a module"),
    ],
)
def test_a_program_runs_beside_a_users_modules_of_the_same_names(clean, beside_strangers, command):
    done = run(clean, *command, cwd=beside_strangers, PYTHONPATH=str(beside_strangers))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", [pytest.param((), id="forked"), pytest.param(("--no-fork",), id="a fresh interpreter")])
def test_a_script_has_its_own_modules_and_ours(clean, beside_strangers, how):
    command = ("turnout-run", "--standalone", "--nproc-per-node=1", *how, "train.py")
    done = run(clean, *command, cwd=beside_strangers, TURNOUT_MEMORY_DIR=str(beside_strangers))
    assert done.returncode == 0, done.stderr
    assert "True Steps" in done.stdout
    assert "the jobs of the user was imported" in done.stdout

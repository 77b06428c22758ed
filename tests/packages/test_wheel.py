"""The wheel alone, in environments that have never seen this checkout."""

import configparser
import os
import re
import subprocess
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hack.images.wheels import SOURCES
from hack.images.wheels import build as built
from hack.lint.architecture import LAYERS
from tests.kit.wheels import ROOT, environment, run
from turnout.cli.programs import EXTRAS
from turnout.kube.version import commit_of, installed_build

pytestmark = pytest.mark.slow

SERVICES = ("turnout-extender", "turnout-nominator", "turnout-autoscaler", "turnout-controller")
GUIDES = ("dlrover-run", "xpu_timer_launch", "xpu_timer_stacktrace_viewer")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def base(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("base"), wheel)


@pytest.fixture(scope="module")
def services(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("services"), wheel, "controllers")


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory):
    return environment(tmp_path_factory.mktemp("clean"), wheel, "cli")


def setup_cfg():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    return setup


def entries(section):
    return {line.partition(" = ")[0] for line in section["console_scripts"].splitlines() if line}


def test_the_base_is_what_a_training_image_needs():
    dependencies = [Requirement(line).name for line in setup_cfg()["options"]["install_requires"].splitlines() if line]
    assert dependencies == ["msgspec", "numpy", "xxhash"]


@pytest.mark.contract("XD-11")
def test_what_the_base_brings_is_three_packages_and_none_of_the_heavy_ones(base):
    code = (
        "import importlib.metadata as m; print(*sorted(d.name for d in m.distributions()))\n"
        "import turnout.launcher.__main__, sys; print('torch' in sys.modules)"
    )
    done = run(base, "python", "-c", code)
    assert (done.stdout.split(), done.stderr) == (["msgspec", "numpy", "turnout", "xxhash", "False"], "")


@pytest.mark.parametrize("extra", EXTRAS)
def test_a_program_knows_the_modules_of_its_extra(extra):
    dependencies = {
        Requirement(line).name for line in setup_cfg()["options.extras_require"][extra].splitlines() if line
    }
    brings = packages_distributions() | {"py_spy": ["py-spy"], "yaml": ["pyyaml"]}  # py-spy is a program alone
    assert {brings[module][0].lower().replace("_", "-") for module in EXTRAS[extra] if module in brings} <= dependencies
    assert len(EXTRAS[extra]) == len(dependencies)


@pytest.mark.contract("DL-28")
@pytest.mark.parametrize("program", ["turnout-run", "turnout", "kubectl-turnout"])
def test_after_pip_install_of_the_base_the_help_ends_with_0(base, program):
    done = run(base, program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "usage" in done.stdout.lower()


@pytest.mark.parametrize("program", SERVICES)
def test_with_their_extra_the_help_of_the_controllers_ends_with_0(services, program):
    done = run(services, program, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"usage: {program}" in done.stdout


@pytest.mark.parametrize("program", sorted(entries(setup_cfg()["options.entry_points"])))
def test_every_program_tells_its_version_without_any_extra(base, program):
    done = run(base, program, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{program} {installed_build().version}\n", "")


NEEDS = [
    *((service, ("--help",), "controllers") for service in SERVICES),
    ("turnout", ("why", "job/a", "--kubeconfig", "none"), "cli"),
    ("turnout", ("demo", "--fast"), "cli"),
    ("turnout", ("jobs",), "cli"),
    ("turnout", ("local", "up"), "cli"),
    ("turnout", ("completion", "bash"), "completion"),
    ("turnout-run", ("--metrics-port=0", "--standalone", "train.py"), "launcher"),
    ("turnout-run", ("--lease=ns/job", "--nnodes=2", "--rdzv-endpoint=127.0.0.1:1", "train.py"), "kubernetes"),
    ("turnout-run", ("--standalone", "--network-check", "--node-verdicts", "train.py"), "kubernetes"),
]


@pytest.mark.parametrize(("program", "arguments", "extra"), NEEDS, ids=[" ".join((p, *a)) for p, a, _ in NEEDS])
def test_without_its_extra_a_program_ends_with_2_and_a_line_that_names_it(base, tmp_path, program, arguments, extra):
    (tmp_path / "train.py").touch()
    done = run(base, program, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [line for line in done.stderr.splitlines() if " info " not in line]
    assert line.startswith(program)
    assert f"pip install 'turnout[{extra}]'" in line


@pytest.mark.contract("DL-28")
@pytest.mark.parametrize("how", [pytest.param((), id="forked"), pytest.param(("--no-fork",), id="a fresh interpreter")])
def test_the_base_runs_a_script_that_has_no_torch(base, tmp_path, how):
    (tmp_path / "train.py").write_text(
        "import os, sys; print(os.environ['RANK'], 'torch' in sys.modules, flush=True)\n"
    )
    done = run(base, "turnout-run", "--standalone", "--nproc-per-node=2", *how, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 False", "1 False"]


@pytest.mark.parametrize(
    ("command", "message"),
    [
        pytest.param(("nofile.py",), "turnout-run: there is no script 'nofile.py' in ", id="a script"),
        pytest.param(("--no-python", "no-such"), "turnout-run: there is no program 'no-such'", id="a program"),
    ],
)
def test_what_is_not_there_is_told_before_any_round(base, tmp_path, command, message):
    done = run(base, "turnout-run", "--standalone", "--max-restarts=3", *command, cwd=tmp_path)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout, line[: len(message)]) == (2, "", message)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("turnout --help", id="a page"),
        pytest.param("turnout stacks --help", id="a page of a command"),
        pytest.param("turnout-run --help", id="the launcher's page"),
        pytest.param("turnout-run --print-completion bash", id="more than a pipe holds"),
        pytest.param("turnout --version", id="a line"),
    ],
)
def test_a_program_whose_reader_has_gone_ends_quietly(base, command):
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as nobody_reads:
        program, *arguments = command.split()
        argv = [base / "bin" / program, *arguments]
        env = {"PATH": os.environ["PATH"]}
        done = subprocess.run(argv, stdout=nobody_reads, stderr=subprocess.PIPE, env=env, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_map_that_the_base_cannot_read_is_told_and_training_goes_on(base, tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "topology.yaml").write_text("a: b\n")
    env = {"TURNOUT_MAP_DIR": str(tmp_path), "NODE_NAME": "host"}
    done = run(base, "turnout-run", "--standalone", "train.py", cwd=tmp_path, **env)
    assert (done.returncode, done.stderr.count("pip install 'turnout[launcher]'")) == (0, 1), done.stderr


def test_dlrovers_own_scripts_are_never_overwritten(wheel, tmp_path):
    assert entries(setup_cfg()["options.entry_points"]) & set(GUIDES) == set()
    folder = environment(tmp_path, wheel)
    assert [name for name in GUIDES if (folder / "bin" / name).exists()] == []


@pytest.mark.contract("DL-122")
def test_the_extra_dlrover_names_brings_the_guides_programs(wheel, tmp_path):
    names = built(tmp_path, SOURCES[1])
    folder = environment(tmp_path / "env", wheel, more=[names])
    assert run(folder, "dlrover-run", "--help").stdout.startswith("usage: dlrover-run ")
    assert run(folder, "xpu_timer_launch", "sh", "-c", "exit 7").returncode == 7
    assert run(folder, "xpu_timer_stacktrace_viewer", "--help").returncode == 0
    pinned = f"turnout-dlrover-names=={installed_build().version}"
    assert setup_cfg()["options.extras_require"]["dlrover-names"].split() == [pinned]
    with zipfile.ZipFile(names) as opened:
        (metadata,) = [opened.read(name).decode() for name in opened.namelist() if name.endswith("METADATA")]
    assert f"Version: {installed_build().version}\n" in metadata
    assert f"Requires-Dist: turnout=={installed_build().version}\n" in metadata


@pytest.mark.parametrize(
    ("noted", "commit"),
    [
        pytest.param(None, "", id="from an index"),
        pytest.param('{"url": "x", "vcs_info": {"vcs": "git", "commit_id": "5af553b"}}', "5af553b", id="from a commit"),
        pytest.param('{"url": "x", "archive_info": {}}', "", id="from a file"),
        pytest.param('{"url": ', "", id="a note that cannot be read"),
    ],
)
def test_a_version_tells_the_commit_if_its_installer_noted_one(noted, commit):
    assert commit_of(noted) == commit


@pytest.mark.contract("DL-68")
def test_the_script_for_spark_is_found_by_the_metadata_of_the_package(base):
    code = (
        "from importlib.metadata import files\n"
        "print(*(path.locate() for path in files('turnout') if path.name == 'pyspark_preprocess.py'))"
    )
    script = Path(run(base, "python", "-c", code).stdout.strip())
    assert script.is_relative_to(base)
    process = run(base, "python", script, "--help")
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("usage: pyspark_preprocess.py ")


@pytest.mark.contract("DL-28")
def test_what_runs_is_the_wheels_and_not_the_checkouts(clean):
    done = run(clean, "python", "-c", "import turnout.launcher; print(turnout.launcher.__file__)")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(clean)


def test_the_wheel_takes_one_name_and_has_all_rooms_below_it(wheel):
    with zipfile.ZipFile(wheel) as opened:
        names = [name.split("/") for name in opened.namelist()]
    assert {parts[0] for parts in names if not parts[0].endswith(".dist-info")} == {"turnout"}
    assert {parts[1] for parts in names if parts[0] == "turnout" and len(parts) > 2} == set(LAYERS)


@pytest.fixture
def beside_strangers(tmp_path):
    """A user's folder, whose modules have the names of our rooms. Who imports one of them for ours ends at once."""
    for room in LAYERS:
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


def test_one_version_everywhere():
    version = setup_cfg()["metadata"]["version"]
    cited = re.findall(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.M)
    noted = re.findall(r"^## (\d[\w.]*)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    charted = re.findall(r"^appVersion: (\S+)$", (ROOT / "deploy/charts/turnout/Chart.yaml").read_text(), re.M)
    assert (cited, noted[0], charted) == ([version], version, [version])

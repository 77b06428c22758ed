"""The lock files: any index may serve them, the image has no torch in it, and they keep what setup.cfg asks for."""

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from turnout.launcher.torch_version import OLDEST_TORCH

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "hack" / "locks"
NAMES = [
    "dev.txt",
    "controllers.txt",
    "demo.txt",
    "launcher-image.txt",
    "pythons.txt",
    "launcher.txt",
    "launcher-floor.txt",
    "adapters.txt",
    "anchors.txt",
    "anchors-nvrx.txt",
    "advisories.txt",
    "colossalai.txt",
    "docs.txt",
    "preprocess.txt",
    "spark.txt",
    "uv.txt",
]
LINE = re.compile(r"([A-Za-z0-9._-]+)==([^\s;]+)( ; [^\\]+)? \\|    --hash=sha256:[0-9a-f]{64}( \\)?")


def pinned(name):
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (LOCKS / name).read_text(), re.M)
    return {canonicalize_name(package): Version(version) for package, version in found}


def requirements_of(*extras):
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    texts = [setup["options"]["install_requires"], *(setup["options.extras_require"][extra] for extra in extras)]
    return [Requirement(line) for text in texts for line in text.split("\n") if line]


def differences(one, other):
    """The packages that two locks share in different versions, with both versions."""
    return {name: (one[name], other[name]) for name in one.keys() & other.keys() if one[name] != other[name]}


@pytest.mark.parametrize("name", NAMES)
def test_a_lock_names_packages_and_hashes_and_no_place(name):
    lines = (LOCKS / name).read_text().splitlines()
    assert [line for line in lines if not LINE.fullmatch(line)] == []
    assert len([line for line in lines if "==" in line]) == len(pinned(name))


@pytest.mark.parametrize(
    ("name", "extras"),
    [
        pytest.param("dev.txt", ["cli", "dev", "completion"], id="dev"),
        pytest.param("controllers.txt", ["controllers"], id="controllers"),
        pytest.param("demo.txt", ["cli"], id="the demo"),
        pytest.param("pythons.txt", ["cli", "completion"], id="other Pythons"),
        pytest.param("launcher-image.txt", ["kubernetes"], id="the launcher's image"),
        pytest.param("launcher.txt", ["launcher"], id="launcher"),
        pytest.param("launcher-floor.txt", ["launcher"], id="the floor"),
        pytest.param("adapters.txt", ["launcher", "adapters"], id="adapters"),
        pytest.param("preprocess.txt", ["preprocess"], id="preprocess"),
        pytest.param("spark.txt", ["spark"], id="Spark"),
    ],
)
def test_a_lock_keeps_what_setup_cfg_asks_for(name, extras):
    locked = pinned(name)
    for requirement in requirements_of(*extras):
        assert requirement.specifier.contains(locked[canonicalize_name(requirement.name)]), requirement


def test_the_image_runs_on_a_part_of_what_was_tested():
    dev, controllers = pinned("dev.txt"), pinned("controllers.txt")
    assert controllers.items() <= dev.items()
    assert {"torch", "pytest", "ruff", "mypy", "ortools", "hypothesis"} & controllers.keys() == set()
    assert "torch" not in dev
    assert controllers.items() <= pinned("demo.txt").items() <= dev.items()
    assert {"torch", "pytest", "ruff", "mypy", "ortools", "hypothesis"} & pinned("demo.txt").keys() == set()


def test_the_launchers_image_brings_all_of_its_extra_but_torch():
    launcher = {canonicalize_name(each.name) for each in requirements_of("launcher")} - {"torch"}
    image = pinned("launcher-image.txt")
    assert launcher <= image.keys()
    assert "torch" not in image
    tested = pinned("dev.txt") | pinned("launcher.txt")
    assert image.items() <= tested.items()


def test_dev_and_launcher_go_into_one_environment():
    dev, launcher = pinned("dev.txt"), pinned("launcher.txt")
    both = dev.keys() & launcher.keys()
    assert {name: launcher[name] for name in both} == {name: dev[name] for name in both}
    assert "torch" in launcher
    assert "kubernetes" not in launcher


def test_adapters_change_nothing_that_is_there():
    launcher, adapters = pinned("launcher.txt"), pinned("adapters.txt")
    assert launcher.items() <= adapters.items()
    assert differences(pinned("dev.txt"), adapters) == {}


@pytest.mark.parametrize("name", ["preprocess.txt", "spark.txt"])
def test_preprocessing_changes_nothing_that_is_there(name):
    installed = pinned("dev.txt") | pinned("adapters.txt") | pinned("preprocess.txt")
    assert differences(installed, pinned(name)) == {}


def test_spark_is_a_lock_of_its_own():
    assert {"pyspark", "py4j"} <= pinned("spark.txt").keys()
    others = [name for name in NAMES if name != "spark.txt"]
    assert [name for name in others if "pyspark" in pinned(name)] == []


def test_the_colossalai_runner_shadows_nothing():
    """The runner lies on the path of some tests' pods, before the environment."""
    runner = pinned("colossalai.txt")
    assert "colossalai" in runner
    assert runner.keys() & (pinned("adapters.txt").keys() | pinned("dev.txt").keys()) == set()


def test_the_floor_is_the_oldest_of_what_a_trainer_may_have():
    oldest = pinned("launcher-floor.txt")
    for requirement in requirements_of("launcher")[len(requirements_of()) :]:
        (minimum,) = [Version(each.version) for each in requirement.specifier if each.operator == ">="]
        assert oldest[canonicalize_name(requirement.name)] == minimum, requirement
    assert oldest["torch"].release[:2] == OLDEST_TORCH

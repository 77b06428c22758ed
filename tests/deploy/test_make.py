"""The targets of the Makefile pass the name of an image on (read from `make --dry-run`)."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands(*argv):
    """Give what make would run."""
    asked = ["make", "--dry-run", *argv]
    return subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        pytest.param(["docker-build"], "-t turnout:0.1.0 .", id="an image without a name gets the chart's"),
        pytest.param(["docker-push"], "push turnout:0.1.0\n", id="the same image is pushed"),
        pytest.param(["docker-build", "IMG=r.io/ours:7"], "-t r.io/ours:7 .", id="an image gets its own name"),
    ],
)
def test_the_image_that_is_built_has_a_name(argv, says):
    assert says in commands(*argv)


@pytest.mark.parametrize("value", ["image.name", "controller.image", "dlroverMaster.image"])
def test_make_deploy_gives_every_program_the_same_image(value):
    assert f"--set {value}=r.io/ours:7" in commands("deploy", "IMG=r.io/ours:7")


def test_make_deploy_without_an_image_leaves_the_charts_own():
    assert ".image" not in commands("deploy")

"""The targets of the Makefile pass the name of an image on (read from `make --dry-run`)."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def commands(*argv):
    """Give what make would run."""
    argv_of_make = ["make", "--dry-run", *argv]
    return subprocess.run(argv_of_make, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout


NAMES = ("turnout:0.1.0", "elasticjob-controller:0.1.0", "dlrover-master:0.1.0")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        pytest.param(
            ["docker-build"], " ".join(f"-t {name}" for name in NAMES), id="the chart's three names by default"
        ),
        pytest.param(["docker-push"], " && ".join(f"docker push {name}" for name in NAMES), id="each name is pushed"),
        pytest.param(["docker-build", "IMG=r.io/ours:7"], "-t r.io/ours:7 .", id="one name of one's own"),
    ],
)
def test_the_image_that_is_built_has_a_name(argv, expected):
    assert expected in commands(*argv)


@pytest.mark.parametrize(
    ("image", "repository", "rest"),
    [
        pytest.param("r.io/p/ours:7", "r.io/p/ours", "--set-string image.tag=7", id="a tag"),
        pytest.param("r.io:5000/ours:1.10", "r.io:5000/ours", "--set-string image.tag=1.10", id="a port and a tag"),
        pytest.param("r.io:5000/ours", "r.io:5000/ours", "", id="a port alone: the chart's tag"),
        pytest.param("r.io/ours@sha256:ab", "r.io/ours", "--set image.digest=sha256:ab", id="a digest"),
    ],
)
def test_make_deploy_gives_every_program_the_same_image(image, repository, rest):
    printed = " ".join(commands("deploy", f"IMG={image}").split())
    assert f"--set image.repository={repository} {rest}".strip() in printed
    assert printed.count("image.") == 1 + bool(rest)


def test_make_deploy_without_an_image_leaves_the_charts_own():
    assert "image." not in commands("deploy")

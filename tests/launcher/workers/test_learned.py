"""From its second life on a script finds imported what it imported itself in its first, where that is safe."""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.launcher.workers.testbed import SECONDS
from turnout.launcher.model import RestartBudget
from turnout.launcher.rendezvous.messages import Formed
from turnout.launcher.workers.environment import Job, of_each, of_process
from turnout.launcher.workers.forkserver.preimport import LEAST_NAMES, packages, worth_it

HERE = Path(__file__).resolve()
PACKAGES = {
    "good/__init__.py": "from importlib import import_module\nfor at in range(25): import_module(f'good.part{at}')\n",
    **{f"good/part{at}.py": "" for at in range(25)},
    "reads.py": "import os\nHOME = os.environ['HOME']\n",
    "starts.py": "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n",
    "falls.py": "raise RuntimeError('not here')\n",
    "ranked.py": "import os\nRANK = os.environ.get('RANK')\n",
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory):
    """Run two lives of a script; give what they were like, and what the agent said meanwhile."""
    root = tmp_path_factory.mktemp("learned")
    place = root / "python"
    venv.EnvBuilder(symlinks=True).create(place)
    site = next(place.glob("lib/python*/site-packages"))
    for name, text in PACKAGES.items():
        (site / name).parent.mkdir(exist_ok=True)
        (site / name).write_text(text)
    path = f"{HERE.parents[3]}:{sysconfig.get_path('purelib')}"
    told = subprocess.run(
        [place / "bin/python", str(HERE.with_name("learns.py")), str(root)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=2 * SECONDS, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stderr
    return json.loads(told.stdout)


def test_its_packages_are_there_at_the_begin_of_the_second_life(lived):
    first, second = (life["found"] for life in lived["lives"])
    assert first == []
    assert {"good", "good.part7", "reads"} <= set(second)


def test_what_is_not_in_site_packages_is_imported_by_the_script_alone(lived):
    """Its own modules may have changed, and may do anything at their import."""
    assert {"own", "beside"}.isdisjoint(lived["lives"][1]["found"])


def test_a_package_that_would_make_forks_worse_is_left_out_and_told(lived):
    assert {"starts", "ranked"}.isdisjoint(lived["lives"][1]["found"])
    told = {fields["module"]: fields["why"] for event, fields in lived["said"] if event == "preload_failed"}
    assert told.pop("starts").startswith("2 threads in the parent: ")
    assert told == {"ranked": "reads RANK at its import, which each process has for itself"}
    assert [life["rank"] for life in lived["lives"]] == ["1", "2"]


def test_what_falls_at_its_import_is_left_to_the_script(lived):
    assert "falls" not in lived["lives"][1]["found"]
    assert lived["err"] == ""


def test_only_the_first_life_is_listened_to(lived):
    first, second = lived["lives"]
    assert (first["finder"], second["finder"]) == (second["finder"] + 1, second["finder"])
    assert [event for event, _ in lived["said"]].count("parent_learned") == 1
    assert not [fields for event, fields in lived["said"] if event == "processes_spawned"]


NAMES = st.lists(st.sampled_from(["a", "a.b", "a.b.c", "b", "b.a", "c", "", "..", "a.", "a b", "-x", "d\x00"]))


@given(names=NAMES, left_out=st.sets(st.sampled_from(["a", "b", "c"])))
def test_every_name_of_a_module_is_in_its_package_once_and_nothing_else_is(names, left_out):
    found = packages(names, left_out)
    flat = [name for each in found.values() for name in each]
    wanted = {name for name in names if name in ("a", "a.b", "a.b.c", "b", "b.a", "c")}
    assert len(flat) == len(set(flat))
    assert set(flat) == {name for name in wanted if name.partition(".")[0] not in left_out}
    assert all(name.partition(".")[0] == package for package, each in found.items() for name in each)


@pytest.mark.parametrize(
    ("count", "left_out", "worth"),
    [
        pytest.param(LEAST_NAMES, (), True, id="enough"),
        pytest.param(LEAST_NAMES - 1, (), False, id="too few"),
        pytest.param(2 * LEAST_NAMES, ("a",), False, id="enough, but they do harm"),
    ],
)
def test_a_parent_is_made_only_for_what_takes_longer_than_it(count, left_out, worth):
    assert worth_it([f"a.b{at}" for at in range(count)], left_out) is worth


def test_every_variable_that_a_process_is_given_is_known_as_its_own():
    formed = Formed(7, 6, 1, 2, 2, 5, "10.0.0.1", 29500, "", RestartBudget())
    given = of_process({}, Job("run"), formed, 3, 0)
    assert [name for name in given if not of_each(name)] == []
    assert not of_each("HOME")

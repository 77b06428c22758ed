"""Mutants: what is made of a source, and that tests which notice one are told from tests which do not."""

import random
import subprocess

import pytest

from hack.mutants.__main__ import Bench, main, sampled, tried
from hack.mutants.made import mutants
from hack.mutants.packages import PACKAGES, Package

SOURCE = '''
LIMIT = 3

def fits(asked, free):
    """Words are no mutants."""
    if asked <= free and not free < 1:
        return True
    raise ValueError("no room")
'''
THOROUGH = """
from rooms.room import fits

def test_it():
    assert [fits(*each) for each in ((1, 1), (1, 2), (2, 2))] == [True] * 3
    for each in ((2, 1), (0, 0), (1, 0), (5, 3)):
        try:
            fits(*each)
        except ValueError:
            continue
        raise AssertionError(each)
"""
CARELESS = "from rooms.room import fits\n\ndef test_it():\n    assert fits(1, 2)\n"


def test_each_mutant_changes_one_thing():
    changes = {mutant.became for mutant in mutants("room.py", SOURCE)}
    assert changes == {
        "if asked < free and not free < 1:",
        "if asked <= free or not free < 1:",
        "if asked <= free and free < 1:",
        "if asked <= free and not free <= 1:",
        "if asked <= free and not free < 2:",
        "return False",
    }


@pytest.fixture
def checkout(tmp_path):
    """A repository with one package and its tests."""
    for name, text in {
        "rooms/__init__.py": "",
        "rooms/room.py": SOURCE,
        "thorough.py": THOROUGH,
        "careless.py": CARELESS,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\nmarkers =\n    long\n    real\n")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize(
    ("tests", "killed"),
    [
        pytest.param("thorough.py", 6, id="tests that look at each bound notice all"),
        pytest.param("careless.py", 2, id="a test of one case notices two"),
    ],
)
def test_who_notices(checkout, tmp_path_factory, tests, killed):
    package = Package("rooms", ("rooms",), (tests,))
    drawn = sampled(package, 10, random.Random(1), checkout)
    outcome = tried(Bench(checkout, tmp_path_factory.mktemp("copies")), package, drawn, set())
    assert (len(drawn), outcome.killed, len(outcome.survived)) == (6, killed, 6 - killed)


def test_one_that_is_known_to_change_nothing_is_not_counted(checkout, tmp_path_factory):
    package = Package("rooms", ("rooms",), ("careless.py",))
    drawn = sampled(package, 10, random.Random(1), checkout)
    known = {(mutant.path, mutant.was, mutant.became) for mutant in drawn[1:]}
    outcome = tried(Bench(checkout, tmp_path_factory.mktemp("copies")), package, drawn, known)
    assert (outcome.killed + len(outcome.survived), outcome.equivalent) == (1, 5)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_nine_in_ten_of_a_seeded_sample_are_noticed(package):
    assert main(["--sample", "10", package]) == 0

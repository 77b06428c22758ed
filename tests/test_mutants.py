"""Mutants: what is made of a source, and that tests which notice one are told from tests which do not."""

import random
import subprocess

import pytest

from hack.mutants.__main__ import main, sampled, tried
from hack.mutants.bench import Bench
from hack.mutants.made import Mutant, is_only_checked, mutants
from hack.mutants.packages import PACKAGES, Package
from hack.mutants.touched import Touched

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
IN_A_FIXTURE = """
import pytest
from rooms.room import fits

@pytest.fixture(scope="module")
def answer():
    return fits(1, 1)

def test_careless(answer):
    pass

def test_careful(answer):
    assert answer is True
"""
FROM_A_CACHE = """
from functools import cache
from rooms.room import fits

answer = cache(fits)

def test_careless():
    answer(1, 1)

def test_careful():
    assert answer(1, 1) is True
"""
AT_IMPORT = """
from rooms.room import fits

ANSWER = fits(1, 1)

def test_it():
    assert ANSWER is True
"""
ELSEWHERE = "def test_it():\n    pass\n"


def test_each_mutant_changes_one_thing():
    changes = {make().became for make in mutants("room.py", SOURCE)}
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
        "in_a_fixture.py": IN_A_FIXTURE,
        "from_a_cache.py": FROM_A_CACHE,
        "at_import.py": AT_IMPORT,
        "elsewhere.py": ELSEWHERE,
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "setup.cfg").write_text("[tool:pytest]\nmarkers =\n    long\n    real\n")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tests", "killed", "unrun"),
    [
        pytest.param(["thorough.py"], 6, 0, id="tests that look at each bound notice all"),
        pytest.param(["careless.py"], 2, 0, id="a test of one case notices two"),
        pytest.param(
            ["careless.py", "thorough.py"],
            6,
            0,
            id="what one test overlooks, another may notice",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["in_a_fixture.py"],
            5,
            0,
            id="a shared fixture is looked at by each test that asks for it",
            marks=pytest.mark.long,
        ),
        pytest.param(
            ["from_a_cache.py"],
            5,
            0,
            id="who is answered from a cache looks at the answer all the same",
            marks=pytest.mark.long,
        ),
        pytest.param(["at_import.py"], 5, 0, id="what runs at import is looked at by all", marks=pytest.mark.long),
        pytest.param(["elsewhere.py"], 0, 6, id="what no test runs, none notices"),
    ],
)
def test_who_notices(checkout, tmp_path_factory, tests, killed, unrun):
    package = Package("rooms", ("rooms",), tuple(tests))
    drawn = sampled(package, 10, random.Random(1), checkout)
    outcome = tried(Bench(checkout, tmp_path_factory.mktemp("copies")), package, drawn, set())
    assert (len(drawn), outcome.killed, len(outcome.survived), len(outcome.unrun)) == (6, killed, 6 - killed, unrun)


def test_a_fault_of_the_tests_themselves_is_told(checkout, tmp_path_factory):
    (checkout / "careless.py").write_text("def test_it():\n    assert not 'so'\n")
    with pytest.raises(RuntimeError, match=r"fail without any mutant:(.|\n)*assert not 'so'"):
        tried(
            Bench(checkout, tmp_path_factory.mktemp("copies")),
            Package("rooms", ("rooms",), ("careless.py",)),
            [],
            set(),
        )


def test_a_sample_of_nought_is_all_there_are(checkout):
    package = Package("rooms", ("rooms",), ())
    everyone = sampled(package, 0, random.Random(1), checkout)
    assert sorted(map(str, everyone)) == sorted(map(str, sampled(package, 10, random.Random(1), checkout)))


@pytest.mark.parametrize(
    ("lines", "order"),
    [
        pytest.param({3: [0]}, ["slow"], id="only who runs the line is asked"),
        pytest.param({3: [0, 1]}, ["quick", "slow"], id="the quickest is asked first"),
        pytest.param({2: [0], 3: [1]}, ["quick", "slow"], id="a statement of two lines is run by who runs either"),
        pytest.param(
            {3: [-1, 0]}, ["slow", "quick", "other"], id="a line run at import too: first who runs it, then all"
        ),
        pytest.param({1: [0], 4: [1]}, [], id="nobody is asked about a line that nobody runs"),
    ],
)
def test_who_is_asked(lines, order):
    touched = Touched({"slow": 2.0, "quick": 0.5, "other": 1.0}, {"room.py": lines})
    mutant = Mutant("room.py", line=3, was="", became="", source="", statement=range(2, 4))
    assert list(touched.by(mutant)) == order


@pytest.mark.parametrize(
    ("was", "statement"),
    [
        pytest.param("return left < right", range(6, 7), id="a line"),
        pytest.param("and left < 7):", range(3, 5), id="a condition of two lines, without what it guards"),
        pytest.param("wide=True,", range(8, 11), id="all lines of a call"),
        pytest.param("limit=3):", range(11, 13), id="a function's head, without its body"),
    ],
)
def test_whoever_runs_any_line_of_a_statement_runs_its_fault(was, statement):
    source = """
def fits(left, right):
    if (left
        and left < 7):
        left = 0
    return left < right
def told(left):
    left(
        wide=True,
    )
def bound(left,
          limit=3):
    pass
"""
    made = [make() for make in mutants("room.py", source)]
    assert {mutant.statement for mutant in made if mutant.was == was} == {statement}


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


@pytest.mark.parametrize(("source", "only_checked"), [
    pytest.param("def f(a, b):\n    return dict(zip(a, b, strict=True))\n", [True], id="the check of a zip"),
    pytest.param("def f(a, b):\n    return a.find(b, deep=True)\n", [False], id="another argument"),
])  # fmt: skip
def test_a_zip_without_its_check_is_no_fault(source, only_checked):
    assert [is_only_checked(make()) for make in mutants("room.py", source)] == only_checked

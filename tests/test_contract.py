"""The contract: its table, the marks on tests, and what `make check` finds fault with."""

import pytest

from hack.lint import contract
from hack.lint.contract import Row, Showing, State


def row(name="CS-01", state=State.SHOWN, note=""):
    return Row(name, "an extender answers", "POST to each verb: 200", state, note)


def shows(*rows, only=()):
    return Showing("tests/test_x.py", "test_x", rows, only)


def test_every_shown_row_here_has_a_test_and_the_page_is_up_to_date():
    assert contract.main(["--check"]) == 0


def test_the_table_holds_all_that_was_promised():
    table, _ = contract.read()
    promised = {"CS": 22, "DL": 129, "CA": 59, "PE": 49, "VE": 37, "MS": 46, "XD": 12}
    ids = {f"{group}-{number:02}" for group, count in promised.items() for number in range(1, count + 1)}
    assert {each.id for each in table} == ids
    assert len(table) == 354
    assert [each.id for each in table if not each.acceptance] == []


@pytest.mark.parametrize(
    ("table", "tests", "faults"),
    [
        pytest.param([row()], [shows("CS-01")], [], id="a shown row with a test is well"),
        pytest.param([row()], [], ["CS-01 is shown by no test"], id="a shown row needs a test"),
        pytest.param([row()], [shows("CS-01"), shows("CS-99")], ["shows CS-99, which is no row"], id="an id has a row"),
        pytest.param(
            [row(state=State.ABSENT, note="not yet")],
            [shows("CS-01")],
            ["shows CS-01, which docs/contract.yaml says is absent"],
            id="what a test shows is not absent",
        ),
        pytest.param([row(state=State.ABSENT, note="not yet")], [], [], id="an absent row needs none"),
        pytest.param(
            [row()],
            [shows("CS-01", only=("long",))],
            ["CS-01 is shown by no test that continuous integration runs"],
            id="a test of make test-long is not enough",
        ),
        pytest.param([row()], [shows("CS-01", only=("slow",))], [], id="one of make test-slow is: CI runs it"),
        pytest.param([row()], [shows("CS-01", only=("real",))], [], id="so is one of make test-real"),
        pytest.param([row()], [shows("CS-01", only=("long",)), shows("CS-01")], [], id="it may stand beside another"),
        pytest.param(
            [row(note="only by make test-long")],
            [shows("CS-01", only=("long",))],
            [],
            id="or the row says so",
        ),
    ],
)
def test_what_is_found_fault_with(table, tests, faults):
    found = list(contract.faults(table, tests))
    assert len(found) == len(faults)
    assert all(words in fault for words, fault in zip(faults, found, strict=True))


MODULE = """
import pytest

@pytest.mark.contract("CS-01", "CS-02")
@pytest.mark.long
def test_one(): ...

@pytest.mark.asyncio
@pytest.mark.contract("CS-03")
async def test_two(): ...

def test_of_nothing(): ...

@pytest.mark.contract("CS-04")
class TestMachine: ...
"""


def test_marks_are_read_from_functions_and_classes():
    assert [(each.name, each.rows, each.only) for each in contract.tests_in("tests/test_x.py", MODULE)] == [
        ("test_one", ("CS-01", "CS-02"), ("long",)),
        ("test_two", ("CS-03",), ()),
        ("TestMachine", ("CS-04",), ()),
    ]


def test_a_mark_of_the_module_holds_for_each_of_its_tests():
    source = MODULE.replace("import pytest\n", "import pytest\npytestmark = [pytest.mark.peers, pytest.mark.real]\n")
    assert [each.only for each in contract.tests_in("tests/test_x.py", source)] == [
        ("long", "peers", "real"),
        ("peers", "real"),
        ("peers", "real"),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("- {id: CS-01, promise: p, acceptance: a, state: done}", "CS-01", id="a state that is none"),
        pytest.param("- {id: CS-01, promise: p, state: shown}", "acceptance", id="no acceptance"),
        pytest.param("- {id: CS-01, promise: p, acceptance: a, state: absent}", "no note says why", id="no reason"),
        pytest.param(
            "[{id: A, promise: p, acceptance: a, state: shown}, {id: A, promise: p, acceptance: a, state: shown}]",
            "A: more than one row",
            id="one id twice",
        ),
        pytest.param("", "a list of objects", id="no table"),
        pytest.param("- CS-01", "a list of objects", id="a row that is a text"),
    ],
)
def test_a_table_that_is_not_whole_is_refused(text, message):
    with pytest.raises(ValueError, match=message):
        contract.rows(text)


def test_the_page_counts_by_state_and_says_where_a_test_may_not_run():
    text = contract.page([row(), row("DL-01", State.ABSENT, "There is no chart.")], [shows("CS-01", only=("peers",))])
    assert "| CS: the core | 1 | 1 | 0 | 0 | 0 |" in text
    assert "| all | 2 | 1 | 1 | 0 | 0 |" in text
    assert "`tests/test_x.py::test_x` (where `TURNOUT_PEERS` names Volcano's binaries)" in text
    assert "| DL-01 | an extender answers | absent | There is no chart. |" in text

"""The table of fault kinds: a kind that never struck, and an invariant that did not hold, cannot pass unseen."""

import pytest

from hack.chaos import job_strikes
from hack.chaos.__main__ import Asked
from hack.chaos.fault_kinds import OF_JOB, TITLES, Kind
from hack.chaos.fault_schedule import Fault
from hack.chaos.history import Record
from hack.chaos.invariants import Invariant, Violation
from hack.chaos.scenarios.registry import STRUCK_HERE
from hack.chaos.strike_table import Check, Row, Strike, code, never_struck, rows, table

HELD, BROKEN = Check("nobody is lost"), Check("nobody is lost", ("2 of 3 are gone",))
SILENT = Kind.WATCH_SILENT


@pytest.mark.parametrize(
    ("asked", "strikes", "missing", "ends_with"),
    [
        pytest.param([SILENT], [Strike(SILENT, 1, 2, (HELD,))], (), 0, id="it struck and all held"),
        pytest.param([SILENT], [], (SILENT,), 1, id="it never struck"),
        pytest.param([SILENT], [Strike(SILENT, 1, 0, (HELD,))], (SILENT,), 1, id="it was tried and hit nobody"),
        pytest.param([SILENT], [Strike(SILENT, 1, 2)], (SILENT,), 1, id="it struck and nothing was checked"),
        pytest.param([SILENT], [Strike(SILENT, 1, 2, (BROKEN,))], (), 1, id="it struck and an invariant was violated"),
        pytest.param(
            [SILENT],
            [Strike(SILENT, 1, 1, (HELD,)), Strike(SILENT, 2, 1, (BROKEN,))],
            (),
            1,
            id="one seed of two violates it",
        ),
        pytest.param([Kind.MAP], [Strike(SILENT, 1, 2, (HELD,))], (Kind.MAP,), 1, id="another kind struck instead"),
    ],
)
def test_a_kind_that_was_asked_for_strikes_and_its_invariants_hold(asked, strikes, missing, ends_with):
    assert (never_struck(asked, strikes), code(asked, strikes)) == (missing, ends_with)


def test_a_row_sums_the_seeds_of_an_invariant():
    strikes = [Strike(SILENT, seed, 2, (HELD, Check("it ends"))) for seed in (1, 2)]
    strikes.append(Strike(SILENT, 3, 1, (BROKEN,)))
    assert rows([SILENT], strikes) == (
        Row(SILENT, 3, 5, "nobody is lost", "VIOLATED"),
        Row(SILENT, 3, 5, "it ends", "held"),
    )


def test_the_table_tells_each_kind_once_and_each_violation_with_its_seed():
    strikes = [Strike(SILENT, 7, 2, (BROKEN, Check("it ends")))]
    lines = [" ".join(line.split()) for line in table([Kind.MAP, SILENT], strikes)]
    assert lines == [
        "fault kind seeds struck invariant verdict",
        "3 watch falls silent 1 2 nobody is lost VIOLATED",
        "it ends held",
        "8 topology map broken 0 0 NEVER STRUCK",
        "VIOLATED: watch falls silent, seed 7: nobody is lost: 2 of 3 are gone",
    ]


def test_the_kinds_are_those_of_the_table():
    assert [kind.value for kind in Kind] == list(range(1, 23))
    assert set(TITLES) == set(Kind)
    assert set(OF_JOB) == set(Fault) - {Fault.AUTOSCALER}


def fault(kind, who):
    return Record("fault", 1.0, kind=kind.name, who=who)


def test_a_fault_of_the_job_that_hit_nobody_has_not_struck():
    records = [fault(Fault.POD, "a"), fault(Fault.AGENT, "b"), fault(Fault.FULL, ""), fault(Fault.AUTOSCALER, "7")]
    found = job_strikes.strikes(3, records, [Violation(Invariant.APART, "round 1 and 2")])
    assert [(each.kind, each.seed, each.times) for each in found] == [(Kind.WORKER, 3, 2)]
    assert {check.invariant: check.violations for check in found[0].checks} == {
        law.value: ("round 1 and 2",) if law is Invariant.APART else () for law in Invariant
    }
    assert job_strikes.never_hit([Fault.POD, Fault.FULL], records) == (Fault.FULL,)


@pytest.mark.parametrize(
    ("words", "kinds", "faults", "named"),
    [
        pytest.param("3", [Kind.WATCH_SILENT], [], [], id="a kind by its number"),
        pytest.param("watch_silent", [Kind.WATCH_SILENT], [], [], id="a kind by its name"),
        pytest.param("pod,node", [], [Fault.POD, Fault.NODE], [Fault.POD, Fault.NODE], id="faults of the job"),
        pytest.param("job", [], list(Fault), [], id="all faults of the job, of which a schedule draws some"),
        pytest.param(
            "15",
            [Kind.WORKER],
            [Fault.PROCESS, Fault.AGENT, Fault.POD, Fault.COORDINATOR, Fault.STOPPED],
            [],
            id="a kind that the job alone can strike",
        ),
    ],
)
def test_what_is_asked_for_is_read(words, kinds, faults, named):
    asked = Asked.of(words.split(","))
    assert (list(asked.kinds), list(asked.faults), list(asked.named)) == (kinds, faults, named)


def test_each_kind_is_struck_by_a_scenario_or_by_the_job():
    assert {*STRUCK_HERE, *OF_JOB.values()} == set(Kind)

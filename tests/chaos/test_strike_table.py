"""The table of fault kinds: a kind that never struck, and an invariant that did not hold, cannot pass unseen."""

import pytest

from hack.chaos import job_strikes
from hack.chaos.__main__ import FaultSelection
from hack.chaos.fault_kinds import OF_JOB, TITLES, Kind
from hack.chaos.fault_schedule import Fault
from hack.chaos.history import Record
from hack.chaos.invariants import Invariant, Violation
from hack.chaos.scenarios.registry import SCENARIOS
from hack.chaos.strike_table import Check, Row, Strike, code, kinds_without_strike, rows, table

HELD, BROKEN = Check("nobody is lost"), Check("nobody is lost", ("2 of 3 are gone",))
CUT = Kind.PARTITION


@pytest.mark.parametrize(
    ("requested_kinds", "strikes", "missing", "ends_with"),
    [
        pytest.param([CUT], [Strike(CUT, 1, 2, (HELD,))], (), 0, id="it struck and all held"),
        pytest.param([CUT], [], (CUT,), 1, id="it never struck"),
        pytest.param([CUT], [Strike(CUT, 1, 0, (HELD,))], (CUT,), 1, id="it was tried and hit nobody"),
        pytest.param([CUT], [Strike(CUT, 1, 2)], (CUT,), 1, id="it struck and nothing was checked"),
        pytest.param([CUT], [Strike(CUT, 1, 2, (BROKEN,))], (), 1, id="it struck and an invariant was violated"),
        pytest.param(
            [CUT],
            [Strike(CUT, 1, 1, (HELD,)), Strike(CUT, 2, 1, (BROKEN,))],
            (),
            1,
            id="one seed of two violates it",
        ),
        pytest.param(
            [Kind.UPGRADE],
            [Strike(CUT, 1, 2, (HELD,))],
            (Kind.UPGRADE,),
            1,
            id="another kind struck instead",
        ),
    ],
)
def test_a_kind_that_was_asked_for_strikes_and_its_invariants_hold(requested_kinds, strikes, missing, ends_with):
    assert (kinds_without_strike(requested_kinds, strikes), code(requested_kinds, strikes)) == (missing, ends_with)


def test_a_row_sums_the_seeds_of_an_invariant():
    strikes = [Strike(CUT, seed, 2, (HELD, Check("it ends"))) for seed in (1, 2)]
    strikes.append(Strike(CUT, 3, 1, (BROKEN,)))
    assert rows([CUT], strikes) == (
        Row(CUT, 3, 5, "nobody is lost", "VIOLATED"),
        Row(CUT, 3, 5, "it ends", "held"),
    )


def test_the_table_tells_each_kind_once_and_each_violation_with_its_seed():
    strikes = [Strike(CUT, 7, 2, (BROKEN, Check("it ends")))]
    lines = [" ".join(line.split()) for line in table([Kind.UPGRADE, CUT], strikes)]
    assert lines == [
        "fault kind seeds struck invariant verdict",
        "14 network cut, one way and both 1 2 nobody is lost VIOLATED",
        "it ends held",
        "20 chart upgraded and rolled back 0 0 NEVER STRUCK",
        "VIOLATED: network cut, one way and both, seed 7: nobody is lost: 2 of 3 are gone",
    ]


def test_each_kind_has_a_title_and_each_fault_a_kind():
    assert set(TITLES) == set(Kind)
    assert set(OF_JOB) == set(Fault) - {Fault.AUTOSCALER}


def fault(kind, who):
    return Record("fault", 1.0, kind=kind.name, who=who)


def test_a_fault_of_the_job_that_hit_nobody_has_not_struck():
    records = [fault(Fault.POD, "a"), fault(Fault.AGENT, "b"), fault(Fault.FULL, ""), fault(Fault.AUTOSCALER, "7")]
    found = job_strikes.strikes(3, records, [Violation(Invariant.NO_OVERLAP, "round 1 and 2")])
    assert [(each.kind, each.seed, each.times) for each in found] == [(Kind.WORKER, 3, 2)]
    assert {check.invariant: check.violations for check in found[0].checks} == {
        law.value: ("round 1 and 2",) if law is Invariant.NO_OVERLAP else () for law in Invariant
    }
    assert job_strikes.faults_without_hit([Fault.POD, Fault.FULL], records) == (Fault.FULL,)


@pytest.mark.parametrize(
    ("words", "kinds", "faults", "named"),
    [
        pytest.param("14", [Kind.PARTITION], [], [], id="a kind by its number"),
        pytest.param("partition", [Kind.PARTITION], [], [], id="a kind by its name"),
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
    selection = FaultSelection.parse(words.split(","))
    assert (list(selection.kinds), list(selection.faults), list(selection.named)) == (kinds, faults, named)


def test_each_kind_is_struck_by_a_scenario_or_by_the_job():
    assert {*SCENARIOS, *OF_JOB.values()} == set(Kind)

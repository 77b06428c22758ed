"""How `turnout.dev/repair` is read: the remedies, their time, and what a gang's members say together."""

import pytest

from turnout.jobs.gang import DEFAULT_AFTER_S, WAIT, Remedy, Repair, most_patient, repair_of
from turnout.kube import labels

MOVE, GIVE_UP = Remedy.MOVE, Remedy.GIVE_UP


@pytest.mark.parametrize(("text", "read"), [
    pytest.param(None, None, id="nothing is said"),
    pytest.param("wait", WAIT, id="it waits"),
    pytest.param("move", Repair(MOVE, DEFAULT_AFTER_S), id="it moves after two minutes"),
    pytest.param("give-up/10", Repair(GIVE_UP, 10), id="it gives up after ten seconds"),
    pytest.param("move/86400", Repair(MOVE, 86_400), id="after a day"),
])  # fmt: skip
def test_what_a_pod_says(text, read):
    faults = []
    assert repair_of({} if text is None else {labels.REPAIR: text}, faults) == read
    assert faults == []


@pytest.mark.parametrize("text", ["", "leave", "Move", "move/", "move/9", "move/86401", "move/ten", "move/010", "/10"])
def test_what_cannot_be_read_counts_as_absent_and_is_told(text):
    faults = []
    assert repair_of({labels.REPAIR: text}, faults) is None
    (fault,) = faults
    assert fault.startswith(f"{labels.REPAIR} is {text!r}: it must be wait, move or give-up")


@pytest.mark.parametrize(("words", "holds"), [
    pytest.param([], WAIT, id="nobody says anything"),
    pytest.param([Repair(MOVE, 60), Repair(MOVE, 300)], Repair(MOVE, 300), id="the longest time"),
    pytest.param([Repair(GIVE_UP, 10), Repair(MOVE, 60)], Repair(MOVE, 60), id="moving before giving up"),
    pytest.param([Repair(GIVE_UP, 10), WAIT, Repair(MOVE, 60)], WAIT, id="waiting before both"),
])  # fmt: skip
def test_the_most_patient_of_different_words_holds(words, holds):
    assert most_patient(words) == most_patient(reversed(words)) == holds

"""Which map is in use, and what is said of each new text."""

import pytest

from turnout.topology.map_update import MapInUse, MapOutcome, decide_on_map, draft_map
from turnout.topology.names import CONFIRMED_MAP_ANNOTATION

TEXT, YAML = "topology_config", "topology.yaml"


def lines(*leaves):
    """A map's text: each leaf a list of last octets."""
    return "".join(f"asw{at} psw0 10.0.0.{host}\n" for at, leaf in enumerate(leaves) for host in leaf)


def drawn(*leaves):
    return draft_map({TEXT: lines(*leaves)})


def in_use(*leaves):
    return drawn(*leaves).fabric


def test_a_first_good_map_is_taken():
    verdict = decide_on_map(None, drawn([1, 2], [3]), "", False)
    assert verdict.fabric.mapped_count == 3
    assert (verdict.outcome, verdict.faults) == (MapOutcome.APPLIED, 0)
    assert verdict.detail == "3 hosts under 2 leaf switches"


def test_faults_keep_the_last_good_map_and_are_all_counted():
    verdict = decide_on_map(in_use([1]), draft_map({TEXT: "one two\n" * 9}), "", False)
    assert verdict.fabric is None
    assert (verdict.outcome, verdict.faults) == (MapOutcome.REJECTED, 9)
    assert verdict.detail.startswith("line 1: ")
    assert verdict.detail.endswith("and 4 more; the last good map stays")


def test_a_host_named_twice_is_a_fault():
    verdict = decide_on_map(in_use([1]), drawn([1, 2], [2]), "", False)
    assert verdict.outcome is MapOutcome.REJECTED
    assert "named 2 times" in verdict.detail


@pytest.mark.parametrize("data", [
    pytest.param({}, id="no key of ours"),
    pytest.param({TEXT: ""}, id="an empty text"),
    pytest.param({TEXT: "# nothing\n\n"}, id="comments only"),
])  # fmt: skip
def test_an_empty_map_is_a_valid_map_of_no_hosts(data):
    verdict = decide_on_map(None, draft_map(data), "", False)
    assert (verdict.outcome, verdict.detail) == (MapOutcome.APPLIED, "0 hosts under 0 leaf switches")
    assert verdict.fabric.mapped_count == 0


def test_a_map_that_is_gone_changes_nothing_but_is_told():
    verdict = MapInUse().update(None, {})
    assert verdict.fabric is None
    assert verdict.outcome is MapOutcome.MISSING


class TestLargeChanges:
    OLD = [1, 2, 3], [4, 5, 6, 7, 8, 9, 10]

    def test_a_change_of_three_in_ten_hosts_is_nothing_unusual(self):
        verdict = decide_on_map(in_use(*self.OLD), drawn([], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), "", True)
        assert verdict.outcome is MapOutcome.APPLIED

    def test_more_is_applied_with_a_warning(self):
        verdict = decide_on_map(in_use(*self.OLD), draft_map({TEXT: ""}), "", False)
        assert verdict.fabric.mapped_count == 0
        assert verdict.outcome is MapOutcome.CHANGED_MUCH
        assert verdict.detail.startswith("100% of the mapped hosts have other switches or are deleted")

    def test_where_the_admin_asks_it_is_held_until_this_text_is_confirmed(self):
        new = draft_map({TEXT: ""})
        decision = decide_on_map(in_use(*self.OLD), new, "", True)
        assert (decision.fabric, decision.outcome) == (None, MapOutcome.HELD)
        assert f"{CONFIRMED_MAP_ANNOTATION}={new.digest}" in decision.detail
        assert decide_on_map(in_use(*self.OLD), new, "another", True).outcome is MapOutcome.HELD
        assert decide_on_map(in_use(*self.OLD), new, new.digest, True).outcome is MapOutcome.CHANGED_MUCH

    def test_a_first_map_is_never_held(self):
        assert decide_on_map(None, drawn(*self.OLD), "", True).outcome is MapOutcome.APPLIED

    def test_a_map_spelled_otherwise_has_another_digest_but_moves_nobody(self):
        assert draft_map({TEXT: lines(*self.OLD) + "\n"}).digest != drawn(*self.OLD).digest
        verdict = decide_on_map(in_use(*self.OLD), draft_map({TEXT: lines(*self.OLD) + "\n"}), "", True)
        assert verdict.outcome is MapOutcome.APPLIED


@pytest.mark.parametrize("text", [
    pytest.param("a: &a [1]\n" + "".join(f"{c}: [*a,*a]\n" for c in "bcd"), id="aliases"),
    pytest.param("[" * 100_000, id="nested too deep"),
    pytest.param("\x00\x01", id="no text at all"),
    pytest.param("- 1\n- 2\n", id="a list"),
    pytest.param("tiers: 7\n", id="numbers for names"),
    pytest.param("asw1 psw1 10.0.0.1\n" * 40_000, id="nearly a MiB of one line"),
])  # fmt: skip
@pytest.mark.parametrize("key", [TEXT, YAML])
def test_no_text_makes_it_stumble_and_no_message_grows_long(text, key):
    verdict = decide_on_map(in_use([1]), draft_map({key: text}), "", False)
    assert len(verdict.detail) <= 500
    assert verdict.outcome in (MapOutcome.REJECTED, MapOutcome.CHANGED_MUCH, MapOutcome.APPLIED)


def test_a_text_is_judged_once_and_again_after_a_loss_or_confirmation():
    in_use, new = MapInUse(hold_large=True), draft_map({TEXT: ""})
    assert in_use.update(drawn([1, 2], [3]), {}).outcome is MapOutcome.APPLIED
    assert in_use.update(drawn([1, 2], [3]), {"a": "label"}) is None
    assert in_use.update(new, {}).outcome is MapOutcome.HELD
    assert in_use.update(new, {}) is None
    assert in_use.update(None, {}).outcome is MapOutcome.MISSING
    assert in_use.update(new, {}).outcome is MapOutcome.HELD  # against the last good one, not against none
    assert in_use.update(new, {CONFIRMED_MAP_ANNOTATION: new.digest}).fabric.mapped_count == 0


def test_a_large_change_is_applied_unless_the_admin_holds_it():
    in_use, hosts = MapInUse(), range(1, 9)
    in_use.update(drawn(hosts), {})
    assert in_use.update(drawn([], hosts), {}).outcome is MapOutcome.APPLIED  # the leaf has another name
    assert in_use.update(drawn(hosts[:4], hosts[4:]), {}).outcome is MapOutcome.CHANGED_MUCH


@pytest.mark.parametrize(("faults", "more"), [(1, ""), (5, ""), (6, "; and 1 more")])
def test_so_many_faults_are_told_and_the_others_counted(faults, more):
    detail = decide_on_map(None, draft_map({TEXT: "one two\n" * faults}), "", False).detail
    assert detail.count("this one holds") == min(faults, 5)
    assert detail.endswith(f"{more}; the last good map stays")
    assert ("more" in detail) == bool(more)


def test_what_is_told_of_faults_is_short():
    """Two rings of switches with long names are a fault each."""
    names = [[f"{ring}{at}" + "s" * 99 for at in range(5)] for ring in "ab"]
    rings = "".join(f"  {one}: {{switches: {ring[at - 1]}}}\n" for ring in names for at, one in enumerate(ring))
    verdict = decide_on_map(None, draft_map({YAML: f"switches:\n{rings}"}), "", False)
    assert (len(verdict.detail), verdict.faults) == (500, 2)

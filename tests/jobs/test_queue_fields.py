"""Fields that anybody may have written, what stands for what nobody has, and sharing by weight in plain numbers."""

import math

import pytest

from tests.jobs.test_queue import GPU, TOTAL, demand, raw, volcano_queue
from turnout.jobs.fields import MAX_FAULTS, lenient_part, read_count_in_text, read_quantity
from turnout.jobs.queues import koordinator, kueue, namespace, volcano
from turnout.jobs.queues.accounting import QueueClaim, charge, holds, room, share_by_weight
from turnout.jobs.queues.model import (
    POOL,
    Amounts,
    Demand,
    Flavor,
    KueueTerms,
    QueueAccess,
    QueueDialect,
    QueueShare,
    QueueSpec,
    Sharing,
    bounds_several,
)
from turnout.jobs.queues.registry import limits, shares


@pytest.mark.parametrize(
    ("text", "count", "faults"),
    [
        pytest.param(None, 7, 0, id="the default if it is absent"),
        pytest.param("0", 0, 0, id="zero"),
        pytest.param("999999999", 999_999_999, 0, id="nine digits"),
        pytest.param("1000000000", 7, 1, id="ten digits are a fault"),
        pytest.param("-1", 7, 1, id="a negative number is a fault"),
        pytest.param("", 7, 1, id="an empty text is a fault"),
        pytest.param("\u0663", 7, 1, id="a digit of another script is a fault"),
        pytest.param("\u00b2", 7, 1, id="a digit that is no decimal is a fault"),
    ],
)
def test_a_count_in_a_text_has_nine_digits_at_most(text, count, faults):
    fields = lenient_part({"n": text})
    assert (read_count_in_text(fields, "n", 7), len(fields.faults)) == (count, faults)


@pytest.mark.parametrize(
    ("value", "count", "faults"),
    [
        pytest.param(None, 7, 0, id="the default if it is absent"),
        pytest.param(0, 0, 0, id="the smallest number"),
        pytest.param(9, 9, 0, id="the largest number"),
        pytest.param(10, 7, 1, id="a larger number is a fault"),
        pytest.param(-1, 7, 1, id="a negative number is a fault"),
        pytest.param("1", 7, 1, id="a text is a fault"),
        pytest.param(1.5, 7, 1, id="a fraction is a fault"),
        pytest.param(True, 7, 1, id="a boolean is a fault"),
        pytest.param([], 7, 1, id="a list is a fault"),
    ],
)
def test_a_count_is_a_whole_number_within_its_bounds(value, count, faults):
    fields = lenient_part({"n": value})
    assert (fields.count("n", 7, maximum=9), len(fields.faults)) == (count, faults)


@pytest.mark.parametrize(
    ("value", "texts", "faults"),
    [
        pytest.param(None, [], [], id="nothing"),
        pytest.param(["a", "b"], ["a", "b"], [], id="texts"),
        pytest.param(["a", 1, "b", 2], ["a", "b"], ["s.l is ['a', 1, 'b', 2]: it must be a list of texts"], id="some"),
        pytest.param("a", [], ["s.l is 'a': it must be a list of texts"], id="a text alone"),
    ],
)
def test_what_is_no_text_of_a_list_is_told_once_and_the_texts_count(value, texts, faults):
    fields = lenient_part({"l": value}, "s")
    assert (list(fields.texts("l")), fields.faults) == (texts, faults)


def test_of_many_faults_of_one_object_a_bounded_number_is_kept():
    fields = lenient_part({"l": [*range(40_000)]}, "s")
    assert fields.parts("l") == ()
    assert len(fields.faults) == MAX_FAULTS
    assert fields.faults[:2] == ["s.l[0] is 0: it must be an object", "s.l[1] is 1: it must be an object"]
    assert fields.faults[-1] == "further faults are not listed"


def test_a_fault_shows_the_first_forty_characters_and_where_it_stands():
    fields = lenient_part({"a": {"b": [{"c": "x" * 99}, 5]}, "t": 3}, "spec")
    for part in fields.part("a").parts("b"):
        read_quantity(part, "c", GPU)
    fields.text("t")
    fields.text("t")
    assert list(fields.part("t").parts("d")) == []
    assert fields.faults == [
        "spec.a.b[1] is 5: it must be an object",
        f"spec.a.b[0].c is '{'x' * 40}': it is no Kubernetes quantity",
        "spec.t is 3: it must be a text",
        "spec.t is 3: it must be an object",
    ]


def test_what_is_said_is_known_from_what_is_not():
    fields = lenient_part({"a": 0, "b": None, "c": ""})
    assert [fields.has(key) for key in "abcd"] == [True, False, True, False]
    assert (fields.text("c", "other"), fields.text("d", "other"), fields.faults) == ("other", "other", [])


@pytest.mark.parametrize("value", [True, math.nan, "1.2.3", [], {}], ids=repr)
def test_what_is_no_quantity_is_told(value):
    fields = lenient_part({"q": value})
    assert (read_quantity(fields, "q", GPU), len(fields.faults)) == (None, 1)


def test_a_queue_of_which_nothing_is_said():
    nothing: Amounts = {}
    assert QueueSpec("q") == QueueSpec(
        "q", QueueDialect.VOLCANO, nothing, nothing, nothing, "", Sharing(1, nothing, True), True, False,
        QueueAccess((), None), nothing, KueueTerms((), "", False), None, "", (),
    )  # fmt: skip
    assert QueueShare() == QueueShare(nothing, nothing, nothing, "", nothing, {}, True, nothing, "", "", (), False)
    assert Flavor("f", GPU) == Flavor("f", GPU, 0, None, None)
    read = volcano.read(raw("q"))
    assert (read, volcano.read(raw("q", weight=0))) == (QueueSpec("q"), QueueSpec("q"))
    assert not kueue.read(raw("q")).kueue.reclaims
    assert [bounds_several(name) for name in ("q", "cohort/c", POOL, "namespace/n")] == [False, True, True, False]


def test_what_a_quota_of_several_says_is_held_together():
    def elastic(name, minimum, maximum, **notes):
        meta = {"name": name, "namespace": "team", "annotations": notes}
        return namespace.read_elastic({"metadata": meta, "spec": {"min": {GPU: minimum}, "max": {GPU: maximum}}})

    free = {"turnout.dev/headroom-gpus": "1"}
    plain = namespace.read(raw("q", hard={"cpu": 3, GPU: 6}, notes={"turnout.dev/headroom-gpus": "2"}))
    found = namespace.shares([elastic("a", 4, 8, **free), plain], demand({"namespace/team": 3}))
    assert found["namespace/team"] == QueueShare(
        {GPU: 6, "cpu": 3000}, {GPU: 4}, {GPU: 3}, POOL, headroom={GPU: 2}, faults=()
    )
    assert found[POOL] == QueueShare({GPU: 4}, used={GPU: 3})
    assert POOL not in namespace.shares([plain], demand())


def test_a_plain_quota_lends_nothing_and_borrows_nothing():
    meta = {"name": "quota", "namespace": "a"}
    elastic = namespace.read_elastic({"metadata": meta, "spec": {"min": {GPU: 1}, "max": {GPU: 1}}})
    found = namespace.shares([elastic, namespace.read(raw("q", hard={GPU: 6}))], demand({"namespace/team": 3}))
    assert (found["namespace/team"].parent, room(found, "namespace/team", GPU)) == ("", 3)
    assert (found["namespace/a"].parent, room(found, "namespace/a", GPU)) == (POOL, 1)


def claim(request, weight=1, minimum=0, own=None):
    return QueueClaim(
        minimum, weight, minimum / weight, max(request, minimum) / weight, minimum if own is None else own
    )


@pytest.mark.parametrize(
    ("claims", "total", "found"),
    [
        pytest.param([], 9, [], id="nobody"),
        pytest.param([claim(5)], 9, [(5, 9)], id="one alone may have it all"),
        pytest.param([claim(9), claim(9)], 9, [(4, 4), (4, 4)], id="two that want it all have whole ones of half"),
        pytest.param([claim(9), claim(1)], 9, [(8, 8), (1, 4)], id="what one leaves is the other's"),
        pytest.param([claim(2), claim(3), claim(9)], 9, [(2, 3), (3, 3), (4, 4)], id="three, one after the other full"),
        pytest.param([claim(2), claim(2), claim(2)], 9, [(2, 5), (2, 5), (2, 5)], id="beside what two others ask for"),
        pytest.param([claim(1), claim(4), claim(4)], 9, [(1, 3), (4, 4), (4, 4)], id="all is asked for, nothing more"),
        pytest.param([claim(9, 2), claim(9)], 9, [(6, 6), (3, 3)], id="by weight"),
        pytest.param([claim(0, 2), claim(9)], 9, [(0, 6), (9, 9)], id="by weight, if it asked"),
        pytest.param([claim(9, 1, 5), claim(9)], 9, [(5, 5), (4, 4)], id="what is least is had first"),
        pytest.param([claim(0, 1, 5), claim(9)], 3, [(5, 5), (0, 0)], id="also where there is less"),
        pytest.param(
            [claim(0, 1, 0, 3), claim(9)], 9, [(0, 6), (9, 9)], id="what one leaves of its own, it may have back"
        ),
        pytest.param([claim(0, 1, 0, 6), claim(9)], 9, [(0, 7), (9, 9)], id="all of it, and half of the rest"),
        pytest.param([claim(0, 1, 0, 3), claim(0)], 9, [(0, 9), (0, 9)], id="and all that nobody asks for"),
    ],
)
def test_a_whole_is_shared_as_water_fills_vessels(claims, total, found):
    assert share_by_weight(claims, total) == found


def test_a_third_of_three_is_one_for_whatever_weights():
    for weight in (1, 3, 7, 49):
        assert share_by_weight([claim(9, weight)] * 3, 3) == [(1, 1)] * 3
    assert share_by_weight([claim(10**9, 3), claim(10**9, 7)], 10**9) == [
        (300_000_000, 300_000_000),
        (700_000_000, 700_000_000),
    ]


LOW, TOP = QueueShare({GPU: 5}, parent="top", guaranteed={GPU: 2}), QueueShare({GPU: 4})


@pytest.mark.parametrize(
    ("used", "left"),
    [
        pytest.param((0, 0), 5, id="its own limit, below what is kept and what is above"),
        pytest.param((1, 0), 4, id="what is kept for it is used first"),
        pytest.param((2, 3), 1, id="then what is above"),
        pytest.param((0, 4), 2, id="what is kept for it is there though nothing is above"),
        pytest.param((2, 4), 0, id="nothing"),
        pytest.param((6, 5), -1, id="less than nothing, where too much is used"),
    ],
)
def test_a_queue_has_what_is_kept_for_it_and_what_is_left_above(used, left):
    now = {"low": {GPU: used[0]}, "top": {GPU: used[1]}}
    queues = {
        name: QueueShare(s.limit, used=now[name], parent=s.parent, guaranteed=s.guaranteed)
        for name, s in zip(now, (LOW, TOP), strict=True)
    }
    assert room(queues, "low", GPU) == left
    assert holds(queues, now, "low", ((GPU, 1),)) is (left >= 1)
    assert left < 1 or (
        holds(queues, now, "low", ((GPU, 1),), left),
        holds(queues, now, "low", ((GPU, 1),), left + 1),
    ) == (
        True,
        False,
    )
    assert holds(queues, now, "low", ((GPU, 0),), 3)


def test_charging_and_giving_back_leaves_everything_as_it_was():
    queues, used = {"low": LOW, "top": TOP}, {"low": {GPU: 1}}
    charge(queues, used, "low", ((GPU, 1),), 3)
    assert used == {"low": {GPU: 4}, "top": {GPU: 2}}
    charge(queues, used, "low", ((GPU, 1),), -3)
    assert used == {"low": {GPU: 1}, "top": {GPU: 0}}
    charge(queues, used, "low", ((GPU, 1),))
    charge(queues, used, "unknown", ((GPU, 1),))
    assert used == {"low": {GPU: 2}, "top": {GPU: 0}}


def test_a_limit_is_what_is_used_and_what_is_left():
    queues = [volcano_queue("p", 20), volcano_queue("a", 20, parent="p"), volcano_queue("b", 20, parent="p")]
    used = {"a": {GPU: 5}, "b": {GPU: 12}}
    assert limits(queues, used, TOTAL) == {"p": {GPU: 20}, "a": {GPU: 8}, "b": {GPU: 15}}
    assert limits(queues, {"a": {GPU: 8}, "b": {GPU: 12}}, TOTAL) == {"p": {GPU: 20}, "a": {GPU: 8}, "b": {GPU: 12}}
    assert room(shares([volcano_queue("a")], demand()), "a", GPU) is None


def test_a_queue_of_another_system_is_nobodys_parent():
    """Queues of two systems that name each other would go in a circle."""
    volcanos = volcano_queue("a", 4, parent="p")
    quota = koordinator.read(raw("p", marks={f"{koordinator.LABEL}parent": "a"}, min={GPU: 1}, max={GPU: 5}))
    found = shares([volcanos, quota], demand())
    assert {name: (share.parent, room(found, name, GPU)) for name, share in found.items()} == {
        "a": ("", 4),
        "p": ("", 1),
    }


def test_what_a_queue_cannot_do_without_is_what_it_uses_where_nobody_says():
    demand = Demand({"a": {GPU: 3}, "b": {GPU: 4}}, {"b": {}}, {})
    assert [demand.need_of(name) for name in "abc"] == [{GPU: 3}, {}, {}]

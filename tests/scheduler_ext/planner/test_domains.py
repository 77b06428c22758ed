"""Domains for several shapes, switches for several groups, and what else narrows the room of a gang."""

import dataclasses

import numpy as np
import pytest

from tests.kit import world
from tests.kit.world import World
from turnout.jobs.gang import GangKey
from turnout.jobs.reservation import Reservation, ReservationReason
from turnout.kube import labels
from turnout.kube.pod_shape import PodShape
from turnout.scheduler_ext.cluster.gang import Gang
from turnout.scheduler_ext.cluster.member import member_of
from turnout.scheduler_ext.planner.pack import assign_switches, domains_with_room, keep_nominated_hosts, share_domain
from turnout.scheduler_ext.planner.ranks import missing_ranks, ranks_of, seating_order
from turnout.scheduler_ext.planner.request import (
    GangRequest,
    PodBatch,
    exclude_rows,
    exclusive_rows,
    limit_by_spread,
    limit_per_host,
    restrict_to_domain,
    union_rows,
)
from turnout.scheduler_ext.planner.reservations import KeptDomain, StrictOrder, mark_domain
from turnout.topology.fabric import with_unmapped_hosts

ONE, TWO = PodShape((("gpu", 3),)), PodShape((("gpu", 2),))


def tree():
    """Leaves of two hosts: 0-1 and 2-3 under one spine, 4-5 under another."""
    lines = [f"{leaf} {spine} {leaf}{at}" for leaf, spine in (("a", "s"), ("b", "s"), ("c", "t")) for at in range(2)]
    return world.build(world.read_map({"topology_config": "\n".join(lines)}).entries)


def table(*numbers):
    return np.array(numbers, np.int32)


class TestDomains:
    @pytest.mark.parametrize(("tables", "counts", "held_hosts", "widest", "found"), [
        pytest.param([(3, 3, 1, 1, 2, 2)], [2], [], 1, [(2, 4), (4, 6), (0, 2)], id="leaves, the tightest first"),
        pytest.param([(1, 1, 1, 1, 2, 2)], [4], [], 3, [(4, 6), (0, 4), (4, 6), (0, 6)], id="then wider"),
        pytest.param([(1, 1, 1, 1, 2, 2)], [4], [], 2, [(4, 6), (0, 4), (4, 6)], id="none wider than allowed"),
        pytest.param([(2, 0, 2, 0, 2, 0), (0, 1, 1, 1, 0, 0)], [2, 2], [], 1, [(2, 4)], id="with room for each shape"),
        pytest.param([(2,) * 6], [1], [2], 1, [(2, 4)], id="that of a member alone"),
        pytest.param([(2,) * 6], [1], [0], 1, [(0, 2)], id="that of a member, the first"),
        pytest.param([(2,) * 6], [1], [5], 2, [(4, 6), (4, 6)], id="that of a member, the last"),
        pytest.param([(2,) * 6], [1], [0, 2], 3, [(0, 4), (0, 6)], id="of members in two leaves their spine"),
        pytest.param([(2,) * 6], [1], [0, 2], 1, [], id="which may be wider than is allowed"),
        pytest.param([(1,) * 6], [7], [], 3, [], id="none is large enough"),
    ])  # fmt: skip
    def test_which_domains_may_hold_every_shape(self, tables, counts, held_hosts, widest, found):
        assert list(domains_with_room(tree(), [table(*each) for each in tables], counts, held_hosts, widest)) == found

    def test_hosts_off_the_map_are_in_no_domain(self):
        fabric = with_unmapped_hosts(tree(), ["x0", "x1"])
        room = table(1, 1, 1, 1, 1, 1, 5, 5)
        assert list(domains_with_room(fabric, [room], [2], [], 1)) == [(0, 2), (2, 4), (4, 6)]
        assert list(domains_with_room(fabric, [room], [1], [6], 1)) == []
        assert list(domains_with_room(with_unmapped_hosts(world.fabric([]), ["x0"]), [table(9)], [1], [], 1)) == []


class TestShares:
    @staticmethod
    def share(counts, gpus, shapes=(ONE, TWO), span=None):
        """Share hosts of so many GPUs: how many of the first shape each takes."""

        def room_of(shape, besides):
            left = np.array(gpus)
            for row, other in besides:
                left[row] -= other.requests[0][1]
            return np.maximum(0, left // shape.requests[0][1]).astype(np.int32)

        tables = [room_of(shape, ()) for shape in shapes]
        found = share_domain(list(shapes), counts, tables, room_of, span or (0, len(gpus)))
        return None if found is None else found.tolist()

    @pytest.mark.parametrize(("counts", "gpus", "found"), [
        pytest.param([1, 1], [4, 3], [0, 1], id="where the other shape loses least"),
        pytest.param([1, 2], [4, 3], [0, 1], id="what is left over suffices"),
        pytest.param([1, 3], [4, 3], None, id="one too many of the second"),
        pytest.param([3, 0], [4, 3], None, id="one too many of the first"),
        pytest.param([2, 2], [4, 6], [0, 2], id="two on one host"),
        pytest.param([2, 2], [4, 3, 4], [1, 1, 0], id="of equal ways that of the first hosts"),
    ])  # fmt: skip
    def test_how_two_shapes_share_hosts(self, counts, gpus, found):
        assert self.share(counts, gpus) == found

    def test_hosts_outside_the_domain_take_none(self):
        assert self.share([1, 1], [8, 4, 6, 8], span=(1, 3)) == [0, 1, 0, 0]

    def test_only_two_shapes_and_few_pods_on_a_host_are_tried(self):
        assert self.share([1], [8], shapes=(ONE,)) is None
        assert self.share([1, 1, 1], [8, 8, 8], shapes=(ONE, TWO, TWO)) is None
        assert self.share([16, 0], [64]) == [16]
        assert self.share([17, 0], [68]) is None
        assert self.share([512, 0], [48] * 32) == [16] * 32
        assert self.share([528, 0], [48] * 33) is None


class TestArranged:
    @pytest.mark.parametrize(("sizes", "room", "fixed", "exclusive", "found"), [
        pytest.param([3, 2, 2], [4, 3], {}, [False] * 3, [1, 0, 0], id="each in the room there is"),
        pytest.param([2, 2], [2, 2], {}, [False] * 2, [0, 1], id="of alike switches the first"),
        pytest.param([2, 1], [5, 3], {}, [False] * 2, [1, 1], id="the fullest switch first"),
        pytest.param([2, 3], [2, 3], {0: 1}, [False] * 2, None, id="where a member is already, which leaves none"),
        pytest.param([2, 2], [4, 9], {0: 1}, [False] * 2, [1, 0], id="where a member is already"),
        pytest.param([1, 1], [9, 9], {}, [True, False], [0, 1], id="apart from the others"),
        pytest.param([1, 1], [9], {}, [False, True], None, id="apart, and there is one switch"),
        pytest.param([1, 1], [9], {}, [False, False], [0], id="together"),
        pytest.param([3], [2, 2], {}, [False], None, id="too large for each"),
        pytest.param([4, 3, 3, 2], [6, 6], {}, [False] * 4, [0, 1, 1, 0], id="only one way"),
        pytest.param([2, 2, 2], [1, 1, 2, 2, 2], {}, [True] * 3, [2, 3, 4], id="past those that are too small"),
    ])  # fmt: skip
    def test_a_switch_for_each_group(self, sizes, room, fixed, exclusive, found):
        chosen = assign_switches(sizes, room, fixed, exclusive)
        assert chosen == (found if found is None or len(found) == len(sizes) else found * len(sizes))

    def test_a_group_tried_under_a_switch_is_a_step(self):
        for steps, found in ((4, [0, 1, 1, 0]), (3, None)):
            assert assign_switches([4, 3, 3, 2], [6, 6], {}, [False] * 4, steps) == found

    def test_a_search_without_end_finds_nothing(self):
        sizes = [2 * (100 + at * at) for at in range(18)]
        odd = sum(sizes) // 2 | 1
        assert assign_switches(sizes, [odd, sum(sizes) - odd], {}, [False] * 18) is None


class TestRanks:
    @staticmethod
    def members(*named):
        """Members of these roles and indexes; without an index, None."""
        found = []
        for at, (role, index) in enumerate(named):
            marks = {labels.TRAINING_TYPE: role, **({labels.RANK: str(index)} if index is not None else {})}
            name = f"p{chr(97 + at)}"
            found.append(member_of(world.pod(name, 8, marks=marks, notes={labels.VOLCANO_GROUP: "bert"})))
        return found

    @pytest.mark.parametrize(("named", "ranks", "bases"), [
        pytest.param([("master", 0), ("w", 0), ("w", 1)], [0, 1, 2], {"": 0, "w": 1}, id="after all indexes before"),
        pytest.param([("w", 1), ("master", 2)], [4, 2], {"": 0, "w": 3}, id="those that are not there, too"),
        pytest.param([("w", 1), ("w", 1)], [0, 1], {}, id="an index twice: the order"),
        pytest.param([("w", None), ("w", 4)], [1, 0], {}, id="an index unknown: the order"),
        pytest.param([("a", 0), ("b", 1), ("c", 0)], [0, 2, 3], {"a": 0, "b": 1, "c": 3}, id="three roles"),
        pytest.param([], [], {}, id="nobody"),
    ])  # fmt: skip
    def test_the_number_of_each_member(self, named, ranks, bases):
        found = self.members(*named)
        assert ranks_of(found) == ({m.uid: rank for m, rank in zip(found, ranks, strict=True)}, bases)

    def test_members_to_come_get_the_lowest_numbers_that_nobody_has(self):
        assert missing_ranks({"a": 0, "b": 3}, 3) == [1, 2, 4]
        assert missing_ranks({}, 2) == [0, 1]
        assert missing_ranks({"a": 0}, 0) == []

    def test_first_go_as_many_of_each_role_as_must_start(self):
        found = self.members(("a", 0), ("a", 1), ("b", 0), ("b", 1))
        order = [(m.membership.role, m.membership.rank) for m in seating_order(found, (("b", 1),), ())]
        assert order == [("b", 0), ("a", 0), ("a", 1), ("b", 1)]
        members = self.members(("b", 7))
        assert [m.membership.role for m in seating_order(found, (("b", 1),), members)] == ["a", "a", "b", "b"]
        assert [m.membership.role for m in seating_order(found, (("b", 2),), members)] == ["b", "a", "a", "b"]


class TestApart:
    def test_hosts_and_plans_of_other_gangs_of_the_set_are_barred_by_domain(self):
        notes = {labels.APART: "leaf", labels.APART_SET: "evals"}
        w = World(2, 2, 2, 2).put(
            *world.volcano("mine", 1, notes=notes),
            *world.volcano("runs", 2, at=["b0"], notes=notes),
            *world.volcano("wide", 1, at=["c0"], notes={**notes, labels.APART: "2"}),
            *world.volcano("other", 1, at=["a0"], notes={**notes, labels.APART_SET: "others"}),
            *world.volcano("far", 1, at=["a1"], notes=notes, namespace="far"),
        )
        w.view.settle(w.now_s)
        gangs = {key.name: gang for key, gang in w.view.gangs.items()}
        planned = {"runs": [6]}
        excluded = exclusive_rows(w.view, gangs["mine"], lambda key: planned.get(key.name, ()))
        # c0 and the hosts of its spine: its gang shares not even a spine with another gang of the set.
        assert excluded.nonzero()[0].tolist() == [2, 3, 4, 5, 6, 7]
        gangs["mine"].members.clear()
        gangs["mine"].leave("")
        assert exclusive_rows(w.view, gangs["mine"], lambda key: ()) is None

    def test_two_tables_of_marks_become_one(self):
        one, other = np.array([True, False, False]), np.array([False, False, True])
        assert union_rows(one, other).tolist() == [True, False, True]
        assert union_rows(one, None) is one
        assert union_rows(None, other) is other
        assert union_rows(None, None) is None


class TestStrictOrder:
    KEY = GangKey("default", "large", "scheduling.volcano.sh")

    def test_the_rows_of_a_domain_that_is_kept_are_barred(self):
        reservation = Reservation(self.KEY, ("a1", "a2"), ReservationReason.STRICT_ORDER, place_text="at s")
        assert mark_domain(KeptDomain(reservation, slice(1, 3)), 4).tolist() == [False, True, True, False]
        assert mark_domain(None, 4) is None

    def test_one_domain_is_kept_in_a_queue_until_its_gang_is_released(self):
        marks = {labels.KUEUE_QUEUE: "train"}
        pods = [world.volcano(name, size, marks=marks) for name, size in (("large", 2), ("small", 1))]
        w = World(2).put(*pods[0], *pods[1], *world.volcano("elsewhere", 1))
        w.view.settle(w.now_s)
        large, small, elsewhere = w.view.gangs.values()
        order = StrictOrder(frozenset({"default/train"}))
        assert (order.keep_domain_for(w.view, large), order.keep_domain_for(w.view, small)) == (True, False)
        assert [order.domain_against(gang) for gang in (large, elsewhere)] == [None, None]
        assert order.domain_against(small).rows == slice(0, 2)
        assert (order.release(small.key), order.release(large.key), order.release(large.key)) == (False, True, False)
        assert order.domain_against(small) is None
        assert not order.keep_domain_for(w.view, elsewhere)

    @pytest.mark.parametrize(("size", "more", "busy", "domain"), [
        pytest.param(2, {}, [], (0, 2), id="the lowest tier that could hold it"),
        pytest.param(2, {}, ["a0"], (2, 4), id="there, where most is free now"),
        pytest.param(3, {}, [], (0, 4), id="a wider one for more"),
        pytest.param(3, {"notes": world.REQUIRED}, [], None, id="none wider than it may have"),
        pytest.param(9, {}, [], None, id="none that is too small"),
        pytest.param(2, {"at": ["a0"]}, [], None, id="none for one that runs"),
    ])  # fmt: skip
    def test_which_domain_is_kept(self, size, more, busy, domain):
        w = World(2, 2, 2, 2).put(*world.volcano("large", size, marks={labels.KUEUE_QUEUE: "train"}, **more))
        w.put(*(world.pod(f"on-{name}", 8, at=name) for name in busy)).view.settle(w.now_s)
        order, small = StrictOrder(frozenset({"train"})), world.volcano("small", 1, marks={labels.KUEUE_QUEUE: "train"})
        w.put(*small)
        large = w.view.gangs[self.KEY]
        assert order.keep_domain_for(w.view, large) is (domain is not None)
        found = order.domain_against(w.view.gangs[w.member(small[0]).membership.key])
        assert (None if found is None else (found.rows.start, found.rows.stop)) == domain


def test_room_is_narrowed_to_a_domain_to_shares_and_beside_what_is_barred():
    def room_of(shape, besides):
        return table(4, 4, 4)

    assert restrict_to_domain(room_of, 1, 2)(ONE, ()).tolist() == [0, 4, 0]
    assert limit_per_host(room_of, ONE, table(1, 9, 0))(ONE, ()).tolist() == [1, 4, 0]
    assert limit_per_host(room_of, ONE, table(1, 9, 0))(TWO, ()).tolist() == [4, 4, 4]
    marks = np.array([True, False, False])
    assert exclude_rows(room_of, {ONE: marks}, None)(ONE, ()).tolist() == [0, 4, 4]
    assert exclude_rows(room_of, {ONE: marks}, ~marks)(TWO, ()).tolist() == [4, 0, 0]


@pytest.mark.parametrize(("maximum", "even", "anchors", "left"), [
    pytest.param([2], True, [], [2, 2, 1], id="as many as the constraint allows"),
    pytest.param([2], True, [0, 0, 0, 1], [0, 1, 1], id="less those that are there"),
    pytest.param([2], True, [2], [2, 2, 1], id="the room, which is already less those that are there"),
    pytest.param([2, 1], True, [], [1, 1, 1], id="of two constraints the narrower"),
    pytest.param([None, 2], True, [], [2, 2, 1], id="of members without one the others'"),
    pytest.param([None], True, [0], [4, 3, 1], id="all, without a constraint"),
    pytest.param([2], False, [0], [4, 3, 1], id="all, where constraints cannot be kept"),
])  # fmt: skip
def test_room_under_hard_spread_constraints(maximum, even, anchors, left):
    members = []
    for at, each in enumerate(maximum):
        members.append(dataclasses.replace(member_of(world.volcano("g", at + 1)[at]), max_per_host=each))
    gang = Gang(GangKey("default", "g", "scheduling.volcano.sh"), 0)
    request = GangRequest(gang, tuple(members), spread_evenly=even)
    assert (
        limit_by_spread(request, PodBatch(members[0].shape, tuple(members), 0), anchors, table(4, 3, 1)).tolist()
        == left
    )


def test_members_keep_the_hosts_to_which_they_were_sent_while_there_is_any():
    members = [member_of(each) for each in world.volcano("g", 4)]
    gang = Gang(GangKey("default", "g", "scheduling.volcano.sh"), 0)
    nominated = {"uid-g-0": 1, "uid-g-1": 1, "uid-g-2": 0}
    room = table(0, 1, 5)
    host_by_uid = keep_nominated_hosts(
        GangRequest(gang, tuple(members), nominated_hosts=nominated),
        PodBatch(members[0].shape, tuple(members), 0),
        room,
    )
    assert (host_by_uid, room.tolist()) == ({"uid-g-0": 1}, [0, 0, 5])

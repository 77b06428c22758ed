"""Room that is counted only where it is looked at agrees with room that is counted anew each time."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.world import GPU
from tests.kit.hypothesis_examples import scaled
from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.scaling.free_room import Quota
from turnout.jobs.queues.accounting import charge, holds
from turnout.jobs.queues.model import QueueShare
from turnout.kube.pod_shape import PodShape

SHAPES = [
    PodShape(requests=((GPU, 1), ("pods", 1))),
    PodShape(requests=((GPU, 2), ("pods", 1))),
    PodShape(requests=(("cpu", 3), (GPU, 4), ("pods", 1))),  # needs three columns, and not every node lets it in
]
NAMES = ("cpu", GPU, "pods")
TAKES = {shape: np.array([dict(shape.requests).get(name, 0) for name in NAMES], dtype=np.int64) for shape in SHAPES}
NODES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 8), st.integers(0, 6)), min_size=1, max_size=5)
ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["take", "within", "give", "undo", "copy", "total"]), st.integers(0, 2), st.integers(1, 5)
    ),
    max_size=25,
)


def counted(left, shape):
    """How many pods of a shape each node holds, counted by hand. left: nodes x resources."""
    takes_port = TAKES[shape] > 0
    fits = np.maximum((left[:, takes_port] // TAKES[shape][takes_port]).min(axis=1), 0)
    return np.where(admits(shape, len(left)), fits, 0)


def admits(shape, nodes):
    return np.arange(nodes) % 2 == 0 if shape is SHAPES[2] else np.ones(nodes, dtype=bool)


@settings(max_examples=scaled(400), deadline=None)
@given(NODES, ACTIONS)
def test_whatever_was_charged_and_given_back_the_count_is_by_hand(nodes, actions):
    left = np.array(nodes, dtype=np.int64)
    room = Capacity(NAMES, left.copy(), TAKES, {shape: admits(shape, len(left)) for shape in SHAPES})
    done = []
    for action, which, pods in actions:
        shape = SHAPES[which]
        if action in ("take", "within"):
            rows = range(len(left))
            charges = room.charge(shape, pods) if action == "take" else room.charge_on_rows(shape, pods, rows)
            assert (charges is not None) == (counted(left, shape).sum() >= pods)
            for row, count in charges or ():
                assert 0 < count <= counted(left, shape)[row]
                left[row] -= TAKES[shape] * count
            done += [(shape, charges)] if charges else []
        elif action == "give":
            room.release(shape, [pods % len(left)])
            left[pods % len(left)] += TAKES[shape]
        elif action == "undo" and done:
            charged_rows, charges = done.pop()
            room.undo(charged_rows, charges)
            for row, count in charges:
                left[row] += TAKES[charged_rows] * count
        elif action == "copy":
            before, room = room, room.copy()
            before.charge(shape, 1)  # what becomes of the one is nothing to the other
        else:
            assert room.total(shape) == counted(left, shape).sum()
    for shape in SHAPES:
        assert room.fits(shape).tolist() == counted(left, shape).tolist()
        assert room.total(shape) == counted(left, shape).sum()


PORT, OTHER_PORT = ("TCP", 7000), ("TCP", 7001)
PORT_SHAPES = [
    PodShape(requests=((GPU, 1),), host_ports=(PORT,)),
    PodShape(requests=((GPU, 1),), host_ports=(PORT, OTHER_PORT)),
    PodShape(requests=((GPU, 2),), host_ports=(OTHER_PORT,)),
    PodShape(requests=((GPU, 1),)),
]


def fits_by_hand(gpus, pods, shape):
    """How many pods of a shape a node holds. pods: the shapes of those on it."""
    left = gpus - sum(dict(each.requests)[GPU] for each in pods)
    fits = max(0, left // dict(shape.requests)[GPU])
    if not shape.host_ports:
        return fits
    return 0 if any({*each.host_ports} & {*shape.host_ports} for each in pods) else min(1, fits)


@settings(max_examples=scaled(300), deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=4),
    st.lists(st.tuples(st.sampled_from(["take", "within", "undo", "give", "copy"]), st.integers(0, 3)), max_size=12),
)
def test_a_host_port_is_had_once_whatever_was_charged(nodes, ports, actions):
    """there: (node, shape) of pods that hold ports from the start."""
    on = [[PORT_SHAPES[which] for row, which in ports if row % len(nodes) == node] for node in range(len(nodes))]
    free = np.array([[gpus - sum(dict(s.requests)[GPU] for s in on[row])] for row, gpus in enumerate(nodes)], np.int64)
    takes = {each: np.array([dict(each.requests)[GPU]], np.int64) for each in PORT_SHAPES}
    admits_all = {each: np.ones(len(nodes), bool) for each in PORT_SHAPES}
    ports_by_row = {row: Counter(port for each in pods for port in each.host_ports) for row, pods in enumerate(on)}
    room = Capacity((GPU,), free, takes, admits_all, ports_held=ports_by_row)
    done = []
    for action, which in actions:
        shape = PORT_SHAPES[which]
        by_hand = [fits_by_hand(gpus, pods, shape) for gpus, pods in zip(nodes, on, strict=True)]
        if action in ("take", "within"):
            charges = room.charge(shape, 1) if action == "take" else room.charge_on_rows(shape, 1, range(len(nodes)))
            assert (charges is not None) == (sum(by_hand) >= 1)
            for row, count in charges or ():
                assert 0 < count <= by_hand[row]
                on[row] += [shape] * count
            done += [(shape, charges)] if charges else []
        elif action == "undo" and done:
            charged_rows, charges = done.pop()
            room.undo(charged_rows, charges)
            for row, _ in charges:
                on[row].remove(charged_rows)
        elif action == "give" and done:
            charged_rows, ((row, _),) = done.pop()
            room.release(charged_rows, [row])
            on[row].remove(charged_rows)
        elif action == "copy":
            before, room = room, room.copy()
            before.charge(shape, 1)
    for shape in PORT_SHAPES:
        by_hand = [fits_by_hand(gpus, pods, shape) for gpus, pods in zip(nodes, on, strict=True)]
        assert room.fits(shape).tolist() == by_hand
        assert room.total(shape) == sum(by_hand)
        rows = {each: [row for row, pods in enumerate(on) for _ in range(pods.count(each))] for each in PORT_SHAPES}
        emptied = room.with_pods_removed(rows)
        assert emptied.total(shape) == sum(fits_by_hand(gpus, [], shape) for gpus in nodes)


@settings(max_examples=scaled(200), deadline=None)
@given(st.dictionaries(st.sampled_from([GPU, "cpu"]), st.integers(0, 9)), st.lists(st.integers(-4, 4), max_size=8))
def test_a_queue_with_nothing_above_it_is_charged_as_any_other(limit, changes):
    """The shorter way that most queues go leads where the whole way does."""
    queue = QueueShare(limit, used={GPU: 2})
    quota, used, needs = Quota({"q": queue}), {"q": dict(queue.used)}, ((GPU, 2), ("cpu", 1), ("memory", 5))
    for times in changes:
        quota.take("q", needs, times)
        charge({"q": queue}, used, "q", needs, times)
        for more in (1, 2):
            assert quota.holds("q", needs, more) == holds({"q": queue}, used, "q", needs, more)

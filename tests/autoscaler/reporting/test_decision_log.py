"""The decision log: whatever was seen, in whatever order it changed, is decided again to the last word."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.autoscaler.test_laws import worlds
from tests.autoscaler.world import GPU, NOW_S, POLICY, job, seen, world
from tests.support.examples import scaled
from turnout.autoscaler.capacity import Capacity
from turnout.autoscaler.decide import decide
from turnout.autoscaler.model import NODES, AdminOverride, Observation, Queue
from turnout.autoscaler.reporting.decision_log import DecisionLogEncoder, Reader
from turnout.autoscaler.reporting.log_codec import BadLog, parts_of
from turnout.autoscaler.reporting.replay import replay
from turnout.jobs.model import Life, Order, Pause, ResizeBudget, Sizes, Spread
from turnout.kube.pod_shape import PodShape


def told(*looks, scribe=None, policy=POLICY):
    """The lines of several looks, a second apart."""
    scribe = scribe or DecisionLogEncoder("1.0")
    return [scribe.line(at, policy, NOW_S + s, decide(at, policy, NOW_S + s)) for s, at in enumerate(looks)]


def results(lines):
    return [(each.fault, each.differs) for each in replay(lines)]


@settings(max_examples=scaled(150), deadline=None)
@given(st.lists(worlds(), min_size=1, max_size=5))
def test_any_sequence_of_worlds_is_decided_again_to_the_last_word(looks):
    lines = told(*looks)
    assert results(lines) == [("", "")] * len(looks)
    reader = Reader()
    for line, at in zip(lines, looks, strict=True):
        again = reader.read(line)
        assert again.seen.jobs == at.jobs
        assert again.seen.queues == at.queues
        assert (again.seen.room.free == at.room.free).all()


@settings(max_examples=scaled(50), deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_jobs_were_seen_is_nobodys_business(at, dice):
    shuffled = list(at.jobs)
    dice.shuffle(shuffled)
    assert results(told(replace(at, jobs=tuple(shuffled)))) == [("", "")]


@settings(max_examples=scaled(50), deadline=None)
@given(st.lists(worlds(), min_size=2, max_size=4), st.data())
def test_after_a_lost_line_only_a_whole_one_can_be_read(looks, data):
    lines = told(*looks)
    lost = data.draw(st.integers(0, len(lines) - 1))
    rest = results(lines[:lost] + lines[lost + 1 :] + told(looks[0]))
    assert [bool(fault) for fault, _ in rest] == [False] * lost + [True] * (len(lines) - 1 - lost) + [False]


def everything():
    """A job of which no field is as it usually is, on a node of a map, in a queue that says all that can be said."""
    terms = (((("zone", "In", ("a", "b")),), (("metadata.name", "NotIn", ("x",)),)),)
    odd = PodShape(
        (("cpu", 500), (GPU, 2), ("pods", 1)), (("disk", "ssd"),), terms, (("k", "Exists", "", ""),), (("TCP", 80),)
    )
    more = {"role": "worker", "wish": 3, "beside": ((odd, 1),), "life": Life.LIVE, "pause": Pause.GROW}
    more |= {
        "pause_ends_s": NOW_S + 0.1,
        "cooldown_s": 0.3,
        "bank": ResizeBudget(-1.5, 7.25, 60.0),
        "curve": ((1, 1.0), (2, 1.7)),
    }
    more |= {"spread": Spread(2, 4), "priority_class": "high", "order": Order(5, 50, NOW_S), "sizes": Sizes(1, True)}
    made = seen(job("a", most=4, **more), [0, None], beside=(1,), done=1)
    names = (GPU, "pods", "cpu")
    free = np.array([[3, 9, -1], [8, 110, 1 << 52]], dtype=np.int64)
    takes = {made.job.shape: np.array([1, 1, 0]), odd: np.array([2, 1, 500])}
    admits = {made.job.shape: np.array([True, False]), odd: np.array([False, True])}
    room = Capacity(names, free, takes, admits, (np.array([0, -1], dtype=np.int32), np.array([4, 4], dtype=np.int32)))
    queue = Queue("q", {GPU: 9}, {"cpu": 1}, {GPU: 2}, False, {GPU: 1})
    return Observation((made,), {"q": queue}, room, 3.5, True, 0.25, AdminOverride.RELEASE, settled={NODES: {GPU: 5}})


def test_nothing_that_can_be_said_is_lost():
    at = everything()
    (line,) = told(at)
    again = Reader().read(line).seen
    assert (again.jobs, dict(again.queues)) == (at.jobs, at.queues)
    assert replace(again, room=at.room) == at
    for shape in (at.jobs[0].job.shape, at.jobs[0].job.beside[0][0]):
        assert again.room.fits(shape).tolist() == at.room.fits(shape).tolist()
    assert [tier.tolist() for tier in again.room.switches] == [[0, -1], [4, 4]]


def test_a_line_is_as_long_as_what_has_changed():
    jobs = [seen(job(f"j{number:03}", 1, 4, 1), [0]) for number in range(200)]
    at = world([300], *jobs, queues={"q": {"limit": 200}})
    grown = replace(jobs[7], job=replace(jobs[7].job, replicas=2, version="2"))
    whole, same, one = told(at, at, world([300], *jobs[:7], grown, *jobs[8:], queues={"q": {"limit": 200}}))
    assert len(same) < 250
    assert len(one) < 1000 < 40_000 < len(whole)
    line = msgspec.json.decode(one)
    assert [each["job"]["key"][2] for each in line["jobs"]] == ["j007"]


def test_a_changed_policy_a_new_map_and_changing_shapes_are_followed():
    one, other = seen(job("a"), [0]), seen(job("b", gpus=2), [1])
    first, second = world([4, 4], one), world([4, 4], one, other)
    switches = (np.array([0, 1], dtype=np.int32),)
    mapped = replace(second, room=Capacity(second.room.names, second.room.free, *zip_parts(second.room), switches))
    scribe, policies = DecisionLogEncoder(), [POLICY, POLICY, replace(POLICY, least_gain=0.9), POLICY]
    looks = [first, second, mapped, first]
    lines = [
        scribe.line(at, policy, NOW_S, decide(at, policy, NOW_S)) for at, policy in zip(looks, policies, strict=True)
    ]
    assert results(lines) == [("", "")] * 4
    assert [b'"policy"' in line for line in lines] == [True, False, True, True]


def zip_parts(room):
    parts = parts_of(room)
    return {shape: part[0] for shape, part in parts.items()}, {shape: part[1] for shape, part in parts.items()}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        pytest.param(lambda line: line[: len(line) // 2], "it cannot be read", id="cut off, as by a crash"),
        pytest.param(lambda line: b"\x00" * 40 + b"\n", "it cannot be read", id="not JSON"),
        pytest.param(
            lambda line: line.replace(b'"version":4', b'"version":9'), "is of version 9", id="from the future"
        ),
        pytest.param(
            lambda line: line.replace(b'"shape":0', b'"shape":77'), "it cannot be read", id="a shape of nobody"
        ),
        pytest.param(
            lambda line: line.replace(b'"least":1', b'"least":9'), "1 <= least <= most", id="no bounds at all"
        ),
        pytest.param(lambda line: b'{"look":' + b"[" * 20_000, "it cannot be read", id="nested without end"),
    ],
)
def test_a_line_that_cannot_be_right_is_told_and_the_next_is_read(spoil, says):
    at = world([4], seen(job("a", least=1), [0]))
    first, second = told(at, at)
    spoilt, orphan, good = replay([spoil(first), second, first])
    assert says in spoilt.fault
    assert "missing" in orphan.fault
    assert (good.fault, good.differs, good.decisions) == ("", "", 1)


def test_a_line_that_contradicts_itself_is_told_and_the_next_is_read():
    at = world([4], seen(job("a", least=1), [0]))
    (line,) = told(at)
    (odd, good) = replay([line.replace(b'"kinds"', b'"unknown"'), line])
    assert "contradict one another" in odd.fault
    assert (good.fault, good.differs, good.decisions) == ("", "", 1)


def test_a_decision_that_is_another_one_by_now_is_shown():
    at = world([4], seen(job("a", most=3), [0]), seen(job("b", most=1), [0]))
    (line,) = told(at)
    (tampered,) = replay([line.replace(b'"NoFreeRoom"', b'"AtMax"').replace(b'"IdleRoom"', b'"Cooldown"')])
    assert tampered.differs == "Job/ns/a: the log has Cooldown, 3 workers, now it is IdleRoom, 3 workers"
    (other,) = replay([line.replace(b'"digest":"', b'"digest":"0')])
    assert other.differs == "reasons and sizes are the same, but not all details"


def test_a_scribe_told_to_forget_says_everything_again():
    at, scribe = world([4], seen(job("a"), [0])), DecisionLogEncoder()
    (first,), (_,) = told(at, scribe=scribe), told(at, scribe=scribe)
    scribe.forget()
    (again,) = told(at, scribe=scribe)
    assert again == first
    with pytest.raises(BadLog):
        Reader().read(told(at, scribe=scribe)[0])

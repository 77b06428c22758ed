"""What a kubelet does with a pod's containers, told by hand-moved clocks."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import scaled
from turnout.simulator.processes import pod_lifecycle as books
from turnout.simulator.processes.pod_lifecycle import (
    KILL,
    TERM,
    Part,
    State,
    at_rest,
    ended,
    leaves,
    next_look_s,
    opened,
    over,
    phase,
    signalled,
    started,
    to_start,
    to_stop,
)


def pod(policy="Always", mains=("m",), inits=()):
    first = [{"name": name} | ({"restartPolicy": "Always"} if name.startswith("side") else {}) for name in inits]
    return {"spec": {"restartPolicy": policy, "containers": [{"name": n} for n in mains], "initContainers": first}}


def start_all(book, now_s=0.0):
    for name in to_start(book, now_s):
        book = started(book, name, now_s)
    return book


def test_init_containers_start_one_after_another_and_then_all_others():
    book = opened(pod(inits=("i1", "side", "i2"), mains=("a", "b")))
    seen = []
    for _ in range(4):
        due = to_start(book, 0)
        seen.append(due)
        book = start_all(book)
        for name in due:
            if book.named(name).part is Part.INIT:
                book = ended(book, name, 0, 1)
    assert seen == [["i1"], ["side"], ["i2"], ["a", "b"]]
    assert phase(book) == "Running"


@pytest.mark.parametrize(
    ("policy", "code", "word", "again"),
    [
        ("Always", 0, "Running", True),
        ("Always", 1, "Running", True),
        ("OnFailure", 0, "Succeeded", False),
        ("OnFailure", 1, "Running", True),
        ("Never", 0, "Succeeded", False),
        ("Never", 1, "Failed", False),
    ],
)
def test_the_restart_policy_says_what_an_end_means(policy, code, word, again):
    book = ended(start_all(opened(pod(policy))), "m", code, 1)
    assert phase(book) == word
    assert bool(to_start(book, 1)) is again
    assert over(book) is not again


def test_a_failed_init_container_fails_a_pod_that_never_restarts():
    book = ended(start_all(opened(pod("Never", inits=("i",)))), "i", 1, 1)
    assert (phase(book), to_start(book, 99)) == ("Failed", [])
    again = ended(start_all(opened(pod("OnFailure", inits=("i",)))), "i", 1, 1)
    assert to_start(again, 1) == ["i"]


def test_the_first_restart_comes_at_once_and_each_later_one_after_twice_the_pause():
    book, now_s, pauses = start_all(opened(pod(), (10.0, 60.0))), 0.0, []
    for _ in range(6):
        book = ended(book, "m", 1, now_s)
        pauses.append((next_look_s(book, now_s) or now_s) - now_s)
        now_s += pauses[-1]
        book = start_all(book, now_s)
    assert pauses == [0, 10, 20, 40, 60, 60]
    assert book.named("m").restarts == 6


def test_one_that_has_run_for_long_starts_afresh():
    book = ended(start_all(opened(pod())), "m", 1, 1)
    book = ended(start_all(book, 1), "m", 1, 2)
    book = ended(start_all(book, 700), "m", 1, 1400)
    assert to_start(book, 1400) == ["m"]


def test_a_pod_that_leaves_is_asked_first_and_killed_when_its_grace_is_over():
    book = leaves(start_all(opened(pod(mains=("a", "b")))), 100, 30)
    assert to_stop(book, 100) == [("a", TERM), ("b", TERM)]
    book = ended(signalled(signalled(book, "a", TERM), "b", TERM), "a", 143, 101)
    assert to_stop(book, 129) == []
    assert to_start(book, 129) == []
    assert next_look_s(book, 129) == 130
    assert to_stop(book, 130) == [("b", KILL)]
    book = signalled(book, "b", KILL)
    assert to_stop(book, 131) == []
    assert at_rest(ended(book, "b", 137, 131))


def test_a_second_deletion_only_shortens_the_grace():
    book = leaves(start_all(opened(pod())), 100, 30)
    assert next_look_s(leaves(book, 110, 60), 110) == 130
    assert next_look_s(leaves(book, 110, 5), 110) == 115


def test_sidecars_go_last():
    book = start_all(start_all(opened(pod("Never", inits=("side",)))))
    gone = ended(book, "m", 0, 5)
    assert to_stop(gone, 5) == [("side", TERM)]
    assert phase(gone) == "Running"
    assert phase(ended(signalled(gone, "side", TERM), "side", 143, 6)) == "Succeeded"
    leaving = leaves(book, 5, 30)
    assert to_stop(leaving, 5) == [("m", TERM)]
    assert to_stop(ended(leaving, "m", 143, 6), 6) == [("side", TERM)]


def test_what_could_not_be_started_is_tried_again_after_a_pause():
    book = books.not_started(opened(pod(), (10.0, 60.0)), "m", "CreateContainerConfigError", "no secret", 0)
    assert to_start(book, 9) == []
    assert to_start(book, 10) == ["m"]


@settings(max_examples=scaled(300))
@given(st.data())
def test_whatever_happens_nothing_runs_twice_and_everything_ends(data):
    """A random pod, random fortunes: only what does not run is started, and a deletion ends it within its grace."""
    policy = data.draw(st.sampled_from(["Always", "OnFailure", "Never"]))
    inits = data.draw(st.lists(st.sampled_from(["i1", "i2", "side1", "side2"]), unique=True, max_size=3))
    book, now_s = opened(pod(policy, ("a", "b"), inits), (1.0, 8.0)), 0.0
    for _ in range(data.draw(st.integers(0, 25))):
        for name in to_start(book, now_s):
            assert book.named(name).state is not State.RUNNING
            book = started(book, name, now_s)
        for name, signal in to_stop(book, now_s):
            book = signalled(book, name, signal)
        running = [each.name for each in book.containers if each.state is State.RUNNING]
        if running and data.draw(st.booleans()):
            book = ended(book, data.draw(st.sampled_from(running)), data.draw(st.sampled_from([0, 1])), now_s)
        now_s += data.draw(st.sampled_from([0.0, 1.0, 20.0]))
        mains_begun = any(each.began_s or each.state is not State.WAITING for each in book.of(Part.MAIN))
        assert not mains_begun or books.initialized(book)
    book = leaves(book, now_s, 5.0)
    for _ in range(3):
        assert to_start(book, now_s) == []
        for name, signal in to_stop(book, now_s + 5.0):
            book = ended(signalled(book, name, signal), name, 137, now_s + 5.0)
    assert at_rest(book)

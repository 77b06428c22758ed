"""The acts of a kubelet on a pod's containers, with a clock moved by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.hypothesis_examples import scaled
from turnout.simulator.processes import pod_lifecycle as lifecycles
from turnout.simulator.processes.pod_lifecycle import (
    KILL,
    TERM,
    ContainerRole,
    ContainerState,
    begin_deletion,
    has_ended,
    has_no_process,
    new_lifecycle,
    next_due_s,
    phase,
    record_end,
    record_signal,
    record_start,
    signals_due,
    starts_due,
)


def pod(policy="Always", mains=("m",), inits=()):
    first = [{"name": name} | ({"restartPolicy": "Always"} if name.startswith("side") else {}) for name in inits]
    return {"spec": {"restartPolicy": policy, "containers": [{"name": n} for n in mains], "initContainers": first}}


def start_all(life, now_s=0.0):
    for name in starts_due(life, now_s):
        life = record_start(life, name, now_s)
    return life


def test_init_containers_start_one_after_another_and_then_all_others():
    life = new_lifecycle(pod(inits=("i1", "side", "i2"), mains=("a", "b")))
    records = []
    for _ in range(4):
        due = starts_due(life, 0)
        records.append(due)
        life = start_all(life)
        for name in due:
            if life.container(name).role is ContainerRole.INIT:
                life = record_end(life, name, 0, 1)
    assert records == [["i1"], ["side"], ["i2"], ["a", "b"]]
    assert phase(life) == "Running"


@pytest.mark.parametrize(
    ("policy", "code", "word", "restarts"),
    [
        ("Always", 0, "Running", True),
        ("Always", 1, "Running", True),
        ("OnFailure", 0, "Succeeded", False),
        ("OnFailure", 1, "Running", True),
        ("Never", 0, "Succeeded", False),
        ("Never", 1, "Failed", False),
    ],
)
def test_the_restart_policy_says_what_an_end_means(policy, code, word, restarts):
    life = record_end(start_all(new_lifecycle(pod(policy))), "m", code, 1)
    assert phase(life) == word
    assert bool(starts_due(life, 1)) is restarts
    assert has_ended(life) is not restarts


def test_a_failed_init_container_fails_a_pod_that_never_restarts():
    life = record_end(start_all(new_lifecycle(pod("Never", inits=("i",)))), "i", 1, 1)
    assert (phase(life), starts_due(life, 99)) == ("Failed", [])
    second_life = record_end(start_all(new_lifecycle(pod("OnFailure", inits=("i",)))), "i", 1, 1)
    assert starts_due(second_life, 1) == ["i"]


def test_a_failed_init_container_ends_the_sidecars():
    life = start_all(start_all(new_lifecycle(pod("Never", inits=("side", "i")))))
    life = record_end(life, "i", 1, 1)
    assert signals_due(life, 1) == [("side", TERM)]
    life = record_end(record_signal(life, "side", TERM), "side", 143, 2)
    assert (phase(life), has_no_process(life), starts_due(life, 99), next_due_s(life, 2)) == ("Failed", True, [], None)


def test_the_first_restart_is_at_once_and_later_pauses_double():
    life, now_s, pauses = start_all(new_lifecycle(pod(), (10.0, 60.0))), 0.0, []
    for _ in range(6):
        life = record_end(life, "m", 1, now_s)
        pauses.append((next_due_s(life, now_s) or now_s) - now_s)
        now_s += pauses[-1]
        life = start_all(life, now_s)
    assert pauses == [0, 10, 20, 40, 60, 60]
    assert life.container("m").restarts == 6


def test_the_pause_keeps_its_bound_after_any_number_of_crashes():
    life = start_all(new_lifecycle(pod(), (10.0, 60.0)))
    for at_s in range(1100):
        life = record_start(record_end(life, "m", 1, at_s), "m", at_s)
    assert next_due_s(record_end(life, "m", 1, 1100), 1100) == 1160


def test_one_that_has_run_for_long_starts_afresh():
    life = record_end(start_all(new_lifecycle(pod())), "m", 1, 1)
    life = record_end(start_all(life, 1), "m", 1, 2)
    life = record_end(start_all(life, 700), "m", 1, 1400)
    assert starts_due(life, 1400) == ["m"]


def test_a_pod_that_leaves_is_asked_first_and_killed_after_its_grace():
    life = begin_deletion(start_all(new_lifecycle(pod(mains=("a", "b")))), 100, 30)
    assert signals_due(life, 100) == [("a", TERM), ("b", TERM)]
    life = record_end(record_signal(record_signal(life, "a", TERM), "b", TERM), "a", 143, 101)
    assert signals_due(life, 129) == []
    assert starts_due(life, 129) == []
    assert next_due_s(life, 129) == 130
    assert signals_due(life, 130) == [("b", KILL)]
    life = record_signal(life, "b", KILL)
    assert signals_due(life, 131) == []
    assert has_no_process(record_end(life, "b", 137, 131))


def test_a_second_deletion_only_shortens_the_grace():
    life = begin_deletion(start_all(new_lifecycle(pod())), 100, 30)
    assert next_due_s(begin_deletion(life, 110, 60), 110) == 130
    assert next_due_s(begin_deletion(life, 110, 5), 110) == 115


def test_sidecars_go_last():
    life = start_all(start_all(new_lifecycle(pod("Never", inits=("side",)))))
    ended_life = record_end(life, "m", 0, 5)
    assert signals_due(ended_life, 5) == [("side", TERM)]
    assert phase(ended_life) == "Running"
    assert phase(record_end(record_signal(ended_life, "side", TERM), "side", 143, 6)) == "Succeeded"
    leaving = begin_deletion(life, 5, 30)
    assert signals_due(leaving, 5) == [("m", TERM)]
    assert signals_due(record_end(leaving, "m", 143, 6), 6) == [("side", TERM)]


def test_what_could_not_be_started_is_tried_again_after_a_pause():
    life = lifecycles.record_failed_start(
        new_lifecycle(pod(), (10.0, 60.0)), "m", "CreateContainerConfigError", "no secret", 0
    )
    assert starts_due(life, 9) == []
    assert starts_due(life, 10) == ["m"]


def test_the_status_names_why_a_restart_failed():
    raw = pod()
    life = record_end(start_all(new_lifecycle(raw)), "m", 1, 5)
    life = lifecycles.record_failed_start(life, "m", "CreateContainerConfigError", "no secret", 6)
    raw = {**raw, "status": {}}
    (shown,) = lifecycles.status_of(raw, life, 6, "10.0.0.1", "10.0.0.2")["containerStatuses"]
    assert shown["state"] == {"waiting": {"reason": "CreateContainerConfigError", "message": "no secret"}}
    assert shown["lastState"]["terminated"]["exitCode"] == 1


@settings(max_examples=scaled(300))
@given(st.data())
def test_whatever_happens_nothing_runs_twice_and_everything_ends(data):
    """A random pod, random fortunes: only what does not run is started, and a deletion ends it within its grace."""
    policy = data.draw(st.sampled_from(["Always", "OnFailure", "Never"]))
    inits = data.draw(st.lists(st.sampled_from(["i1", "i2", "side1", "side2"]), unique=True, max_size=3))
    life, now_s = new_lifecycle(pod(policy, ("a", "b"), inits), (1.0, 8.0)), 0.0
    for _ in range(data.draw(st.integers(0, 25))):
        for name in starts_due(life, now_s):
            assert life.container(name).state is not ContainerState.RUNNING
            life = record_start(life, name, now_s)
        for name, signal in signals_due(life, now_s):
            life = record_signal(life, name, signal)
        running = [each.name for each in life.containers if each.state is ContainerState.RUNNING]
        if running and data.draw(st.booleans()):
            life = record_end(life, data.draw(st.sampled_from(running)), data.draw(st.sampled_from([0, 1])), now_s)
        now_s += data.draw(st.sampled_from([0.0, 1.0, 20.0]))
        mains_begun = any(
            each.began_s or each.state is not ContainerState.WAITING for each in life.of(ContainerRole.MAIN)
        )
        assert not mains_begun or lifecycles.is_initialized(life)
    life = begin_deletion(life, now_s, 5.0)
    for _ in range(3):
        assert starts_due(life, now_s) == []
        for name, signal in signals_due(life, now_s + 5.0):
            life = record_end(record_signal(life, name, signal), name, 137, now_s + 5.0)
    assert has_no_process(life)

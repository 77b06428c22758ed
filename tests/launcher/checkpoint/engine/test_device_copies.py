"""Saves of a device in any order of events. The device is played on the CPU (tests/gpu/late_streams.py)."""

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gpu.late_streams import LateStreams, Training, copied, same
from tests.kit.hypothesis_examples import scaled

ACTS = ("step", "overlapped", "blocking", "wait", "write")


@settings(max_examples=scaled(15), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.sampled_from(ACTS), max_size=12))
def test_what_is_loaded_is_the_newest_save_that_was_not_dropped(make, tmp_path_factory, acts):
    training, streams = Training(16), LateStreams()
    checkpoints = make(tmp_path_factory.mktemp("checkpoints"), streams=streams)
    checkpoints.prepare(training.state())
    checkpoints.wait()
    saved, dropped = {}, []
    checkpoints.on_failure = lambda step, why: dropped.append(step)
    for step, act in enumerate(acts, 1):
        match act:
            case "step":
                training.step()
            case "overlapped":
                saved[step] = copied(training.state())
                checkpoints.save(step, training.state(), disk=False, overlap=training.optimizer)
            case "blocking":
                saved[step] = copied(training.state())
                checkpoints.save(step, training.state(), disk=False)
            case "wait":
                checkpoints.wait()
            case "write":
                with torch.no_grad():
                    training.model[2].weight.add_(1)
    found = checkpoints.load()
    remaining = [step for step in saved if step not in dropped]
    assert (found is None) == (not remaining)
    if found is not None:
        assert found.step == remaining[-1]
        assert same(saved[found.step], found.state)
    checkpoints.close()

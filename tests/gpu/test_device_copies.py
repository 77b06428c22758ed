"""A save copies from a device beside training: the host waits for nothing but the save's own copies.

The device is played on the CPU (late_streams.py), so these tests run everywhere. test_on_gpu.py has the real ones.
"""

import pytest
import torch

from tests.gpu.late_streams import LateStreams, Training, copied, same


@pytest.fixture
def streams():
    return LateStreams()


@pytest.fixture
def training():
    return Training()


@pytest.fixture
def checkpoints(make, tmp_path, streams, training):
    """A checkpointer whose pages are registered with the played device."""
    checkpointer = make(tmp_path, streams=streams)
    checkpointer.prepare(training.state())
    checkpointer.wait()
    return checkpointer


def test_a_blocking_save_waits_once_and_for_its_own_copies(checkpoints, streams, training):
    before = copied(training.state())
    checkpoints.save(1, training.state(), disk=False)
    assert (streams.host_waits(), streams.orders) == (1, 0)
    training.step()
    assert same(before, checkpoints.load().state)


def test_an_overlapped_save_and_the_step_after_it_never_hold_the_host(checkpoints, streams, training):
    before = copied(training.state())
    checkpoints.save(1, training.state(), disk=False, overlap=training.optimizer)
    training.step()
    training.step()
    assert streams.host_waits() == 0
    assert same(before, checkpoints.load().state)
    assert checkpoints.stats().dropped == 0


def test_an_overlapped_save_is_sealed_without_another_call(checkpoints, streams, training):
    checkpoints.save(1, training.state(), overlap=training.optimizer)
    training.step()
    checkpoints.wait()
    sealed = [name for name in streams.waiting_threads if name.startswith("turnout-seal")]
    assert sealed, "a thread of its own has waited for the device"
    assert checkpoints.stats().persisted == 1


def test_what_the_next_forward_may_change_is_copied_before_it(checkpoints, streams, training):
    buffer = torch.zeros(4, 6).t()
    state = {**training.state(), "buffer": buffer}
    checkpoints.save(1, state, disk=False, overlap=training.optimizer)
    buffer.fill_(1)
    training.step()
    assert checkpoints.load().state["buffer"].sum() == 0
    assert checkpoints.stats().dropped == 0


def test_each_of_two_optimizers_steps_after_the_copy(checkpoints, streams, training):
    other = Training()
    both = {"one": training.state(), "other": other.state()}
    checkpoints.prepare(both)
    checkpoints.wait()
    before = copied(both)
    checkpoints.save(1, both, disk=False, overlap=[training.optimizer, other.optimizer])
    training.step()
    orders = streams.orders
    other.step()
    assert streams.orders > orders, "it may step on a stream of its own"
    assert streams.host_waits() == 0
    assert same(before, checkpoints.load().state)


def test_a_write_before_the_step_drops_the_save_and_keeps_the_one_before(checkpoints, streams, training):
    dropped = []
    checkpoints.on_failure = lambda step, why: dropped.append(step)
    before = copied(training.state())
    checkpoints.save(1, training.state(), disk=False)
    checkpoints.save(2, training.state(), disk=False, overlap=training.optimizer)
    with torch.no_grad():
        training.model[0].weight.mul_(1.01)
    training.step()
    assert dropped == [2]
    assert (checkpoints.load().step, same(before, checkpoints.load().state)) == (1, True)


@pytest.mark.parametrize(
    ("refuses", "verify"),
    [
        pytest.param("error 2", False, id="pages that the driver has refused"),
        pytest.param("", True, id="a save whose bytes are to be verified"),
    ],
)
def test_where_the_copy_cannot_run_beside_training_it_is_made_at_once(make, tmp_path, training, refuses, verify):
    streams = LateStreams(refuses)
    checkpoints = make(tmp_path, streams=streams)
    checkpoints.prepare(training.state())
    checkpoints.wait()
    before = copied(training.state())
    checkpoints.save(1, training.state(), disk=False, overlap=training.optimizer, verify=verify)
    with torch.no_grad():
        training.model[0].weight.mul_(1.01)
    training.step()
    assert same(before["model"]["0.weight"], checkpoints.load().state["model"]["0.weight"])


def test_a_driver_that_refuses_is_reported_once(make, tmp_path, training, caplog):
    checkpoints = make(tmp_path, streams=LateStreams("cudaHostRegister: error 2"))
    checkpoints.prepare(training.state())
    checkpoints.wait()
    checkpoints.save(1, training.state(), disk=False)
    checkpoints.wait()
    words = [each.message for each in caplog.records]
    assert words.count("memory_not_registered") == 1


def test_a_copy_that_cannot_start_costs_this_save_alone(checkpoints, streams, training):
    before = copied(training.state())
    checkpoints.save(1, training.state(), disk=False)
    streams.fails = True
    with pytest.raises(RuntimeError, match="out of memory"):
        checkpoints.save(2, training.state(), disk=False, overlap=training.optimizer)
    streams.fails = False
    training.step()
    assert same(before, checkpoints.load().state)
    checkpoints.save(3, training.state(), disk=False)
    assert checkpoints.load().step == 3

"""Parts with names, in one process: what comes back, what is refused, which objects of a framework are made again."""

import os
import tempfile
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum

import pytest
import torch

from turnout.launcher.checkpoint.daemon.trainer_client import OwnDaemon
from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.checkpoint.format.daemon_messages import Hello
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.step_reader import committed_steps
from turnout.launcher.env import DAEMON, MEMORY, RUN, WORKER
from turnout.launcher.errors import BadCheckpoint, BadState
from turnout.launcher.flash_checkpoint.named_parts import Parts, decode_object, encode_object

pytestmark = pytest.mark.slow


class Stage(int, Enum):
    """ZeRO's stages, numbered as DeepSpeed does."""

    GRADIENTS = 2


@dataclass(frozen=True)
class Piece:
    """The place of a parameter, as DeepSpeed describes it."""

    start: int
    held: object = None


KINDS = {"piece": Piece}


@pytest.fixture
def parts(tmp_path):
    with tempfile.TemporaryDirectory(prefix="turnout-test-", dir="/dev/shm") as memory:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
        environ = environment | {"TURNOUT_MEMORY_DIR": memory}
        yield lambda: Parts(tmp_path / "steps", environ=environ)
        memories.close()


def test_parts_come_back_from_memory_and_from_storage(parts, tmp_path):  # DL-63
    first, weight = parts(), torch.nn.Parameter(torch.arange(6.0).reshape(2, 3))
    given = {
        "model/rank_0": OrderedDict(weight=weight, tied=weight, empty=torch.zeros(0, 2)),
        "random": torch.get_rng_state(),
        "plain": {"step": 3, "betas": (0.9, 0.95), "name": None, 2: [True]},
    }
    assert first.load(bool) is None
    first.save(3, given, disk=False)
    from_memory = first.load(bool)
    assert not (tmp_path / "steps").exists()
    first.save(4, given, disk=True)
    first.wait(60)
    memories.close()
    from_storage = parts().load(bool)
    for found, step in ((from_memory, 3), (from_storage, 4)):
        assert (found.step, found.same_world, list(found.parts)) == (step, True, list(given))
        assert found.parts["plain"] == given["plain"]
        assert torch.equal(found.parts["random"], given["random"])
        model = found.parts["model/rank_0"]
        assert torch.equal(model["weight"], weight)
        assert model["tied"] is model["weight"]
        assert model["empty"].shape == (0, 2)


@pytest.fixture
def agent_environ(memory):
    """The environment under an agent; a daemon of this test stands for the agent's."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TURNOUT_")}
    daemon = OwnDaemon(Hello("job", "w0", 0, 0, 1, 0), memory, environ | {MEMORY: str(memory)})
    yield environ | {DAEMON: daemon.path, RUN: "job", WORKER: "w0", MEMORY: str(memory)}
    memories.close()
    daemon.end()


def test_saves_to_several_folders_under_an_agent_are_all_awaited(agent_environ, tmp_path):
    folders = [str(tmp_path / name) for name in ("first", "second")]
    savers = [Parts(folder, environ=agent_environ) for folder in folders]
    for step in (1, 2):
        for saver in savers:
            saver.save(step, {"model": {"w": torch.ones(2) * step}}, disk=True)
    for saver in savers:
        saver.wait(60)
    for folder in folders:
        assert committed_steps(open_store(folder), lambda word, fields: None) == (1, 2)


def test_what_cannot_be_saved_is_told_by_path_and_the_step_before_stays(parts):  # DL-63
    saver = parts()
    saver.save(1, {"model": {"w": torch.ones(2)}}, disk=False)
    with pytest.raises(BadState, match="hook"):
        saver.save(2, {"model": {"w": torch.ones(2), "hook": print}}, disk=False)
    assert saver.load(bool).step == 1


@pytest.mark.parametrize(
    ("value", "comes_back"),
    [
        pytest.param(Piece(3, [Piece(1)]), Piece(3, [Piece(1)]), id="an object that is listed, with another in it"),
        pytest.param({"stage": Stage.GRADIENTS}, {"stage": 2}, id="an enumeration, as its value"),
        pytest.param(
            {Stage.GRADIENTS: {("zero", Stage.GRADIENTS): 1}}, {2: {("zero", 2): 1}}, id="enumerations as keys"
        ),
        pytest.param([{Stage.GRADIENTS}], [{2}], id="a set of enumerations"),
        pytest.param([{"b", "a"}, set()], [{"a", "b"}, set()], id="sets of plain values"),
        pytest.param(OrderedDict(b=1, a=(2, [3])), OrderedDict(b=1, a=(2, [3])), id="plain values"),
        pytest.param(
            {0: {(torch.float32, torch.bfloat16): [1]}}, {0: {(torch.float32, torch.bfloat16): [1]}},
            id="a dict with types of torch as keys",
        ),
    ],
)  # fmt: skip
def test_objects_of_a_framework_come_back(parts, value, comes_back):  # DL-63
    saver = parts()
    saver.save(1, {"it": encode_object(value, KINDS)}, disk=False)
    found = decode_object(saver.load(bool).parts["it"], KINDS)
    assert found == comes_back
    assert type(found) is type(comes_back)


def test_only_listed_objects_are_made(parts):  # DL-63
    with pytest.raises(BadCheckpoint, match="only plain values are made here"):
        decode_object(encode_object(Piece(1), KINDS), {})
    with pytest.raises(BadCheckpoint, match=r"'os\.system'"):
        decode_object({"turnout.object": "os.system", "fields": {"command": "true"}}, KINDS)
    with pytest.raises(BadState, match="is taken"):
        encode_object({"turnout.object": "piece", "fields": {}}, KINDS)

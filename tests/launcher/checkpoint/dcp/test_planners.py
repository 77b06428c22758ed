"""Planners of torch.distributed.checkpoint, its own, ours and a user's: which are taken, and what none can save."""

import re
from inspect import signature

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException

from tests.launcher.checkpoint.dcp.alone import a_state, same
from turnout.launcher.checkpoint.dcp.writer import FlashLoadPlanner, FlashStorageWriter

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")


class Prefixed(FlashLoadPlanner):
    """A planner of the user's own, over ours."""

    loaded = ()

    def load_bytes(self, read_item, value):
        super().load_bytes(read_item, value)
        self.loaded += (read_item.dest_index.fqn,)


class Pickles(dcp.DefaultSavePlanner):
    def transform_object(self, write_item, object):
        return super().transform_object(write_item, object)


class Unpickles(dcp.DefaultLoadPlanner):
    def load_bytes(self, read_item, value):
        super().load_bytes(read_item, value)


def test_a_planner_over_ours_is_asked(alone):
    alone.save()
    planner = Prefixed()
    assert same(alone.load(planner=planner), 1.0)
    assert sorted(planner.loaded) == ["n.rate", "n.step"]


def test_a_planner_that_pickles_or_unpickles_is_refused(alone):
    writer = FlashStorageWriter(alone.folder, step=1, environ=alone.environ)
    with pytest.raises(CheckpointException, match="make it a FlashSavePlanner"):
        dcp.save(a_state(), storage_writer=writer, planner=Pickles())
    alone.save()
    with pytest.raises(CheckpointException, match="make it a FlashLoadPlanner"):
        alone.load(planner=Unpickles())


@pytest.mark.skipif("enable_plan_caching" not in signature(dcp.DefaultSavePlanner).parameters, reason="2.7 and newer")
def test_a_planner_that_keeps_plans_from_save_to_save_is_refused(alone):
    def save(step):
        writer = FlashStorageWriter(alone.folder, step=step, environ=alone.environ)
        dcp.save(a_state(), storage_writer=writer, planner=dcp.DefaultSavePlanner(enable_plan_caching=True))

    save(1)
    with pytest.raises(CheckpointException, match="leave enable_plan_caching off"):
        save(2)


@pytest.mark.parametrize(
    ("state", "why"),
    [
        pytest.param({"a": {"b": object()}}, "a.b: a builtins.object", id="an object"),
        pytest.param({"a": (1, {"c": {2}})}, "a/#1/c: a builtins.set", id="a set in a tuple"),
        pytest.param({"a": (torch.ones(2),)}, "a/#0: a tensor in a tuple", id="a tensor where DCP does not look"),
        pytest.param(
            {"a": torch.ones(2, dtype=torch.complex128)},
            "a: a checkpoint cannot have a tensor of torch.complex128",
            id="a dtype without a place",
        ),
    ],
)
def test_what_cannot_be_saved_is_refused_with_its_path(alone, state, why):
    with pytest.raises(CheckpointException, match=re.escape(why)):
        dcp.save(state, storage_writer=FlashStorageWriter(alone.folder, step=1, environ=alone.environ))

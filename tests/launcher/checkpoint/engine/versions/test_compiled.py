"""A module that torch.compile wraps is saved by its own names: a plain model loads it, and the other way round."""

import pytest
import torch
from torch import nn

from turnout.launcher.checkpoint.dcp.reader import memories
from turnout.launcher.flash_checkpoint import FsdpShardCheckpointer

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")


def model(seed, how):
    """A model that has been trained a step, and its optimizer."""
    torch.manual_seed(seed)
    layers = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
    optimizer = torch.optim.Adam(layers.parameters())
    layers(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    if how == "a part":
        layers[0] = torch.compile(layers[0], backend="eager")
    return torch.compile(layers, backend="eager") if how == "all" else layers, optimizer


def bits(layers):
    return [(each.shape, each.detach().numpy().tobytes()) for each in layers.state_dict().values()]


WAYS = [
    pytest.param("all", "nothing", id="compiled, and loaded into a plain one"),
    pytest.param("nothing", "all", id="plain, and loaded into a compiled one"),
    pytest.param("a part", "all", id="compiled in part, and loaded into one that is compiled as a whole"),
]


@pytest.mark.parametrize(("saved", "loaded"), WAYS)
def test_a_checkpointer(make, tmp_path, saved, loaded):
    (first, of_first), (other, of_other) = model(1, saved), model(2, loaded)
    checkpoints = make(tmp_path)
    checkpoints.save(1, {"model": first, "optimizer": of_first})
    assert not any("_orig_mod" in name for name in checkpoints.load().state["model"])
    checkpoints.load(into={"model": other, "optimizer": of_other})
    assert bits(other) == bits(first)
    assert torch.equal(of_other.state_dict()["state"][0]["exp_avg"], of_first.state_dict()["state"][0]["exp_avg"])


def test_names_of_a_compiled_model_that_a_script_has_saved_itself(make, tmp_path):
    (first, _), (other, _) = model(1, "all"), model(2, "nothing")
    checkpoints = make(tmp_path)
    checkpoints.save(1, {"model": dict(first.state_dict())})
    checkpoints.load(into={"model": other})
    assert bits(other) == bits(first)


@pytest.mark.parametrize(("saved", "loaded"), WAYS)
def test_a_checkpointer_of_shards(environ, tmp_path, saved, loaded):
    first, of_first = model(1, saved)
    other, of_other = model(2, loaded)
    checkpoints = FsdpShardCheckpointer(tmp_path, environ=environ)
    checkpoints.save_checkpoint(1, first, of_first)
    checkpoints.wait_latest_checkpoint(60)
    checkpoints.load_checkpoint(other, of_other)
    assert bits(other) == bits(first)
    memories.close()

"""Which shards a world of any size can read: those that torch.distributed.checkpoint's writer has saved."""

import json

import pytest

from turnout.launcher.checkpoint.format.shard_file import KEY, head_of, is_reshardable, pack
from turnout.launcher.checkpoint.format.state_tree import flatten


def shard(state, **metadata):
    text = flatten(state, lambda value: False)[0]
    return head_of(pack([]), {KEY: json.dumps({"tree": text, "rank": 0, "world": 2}), **metadata})


@pytest.mark.parametrize(("data", "found"), [
    pytest.param(shard({"dcp": 1, "save": "a", "chunks": {}, "values": {}, "table": None}), True, id="saved by DCP"),
    pytest.param(shard({"dcp": 1, "save": "a"}) + b"data", True, id="and bytes behind it"),
    pytest.param(shard({"model": {}, "dcp": 1}), False, id="a state that has such a name in it"),
    pytest.param(shard({"dcp": 2, "save": "a"}), False, id="of a format that is not known"),
    pytest.param(shard([1]), False, id="no dict"),
    pytest.param(head_of(pack([]), {}), False, id="safetensors of somebody else"),
    pytest.param(head_of(pack([]), {KEY: "[1"}), False, id="text that is no JSON"),
    pytest.param(b"\0" * 4096, False, id="no head"),
    pytest.param(b"", False, id="nothing"),
])  # fmt: skip
def test_what_can_be_read_in_parts(data, found):
    assert is_reshardable(data) is found

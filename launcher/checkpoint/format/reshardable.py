"""Tells from a shard's header whether a world of any size can read it in parts."""

from __future__ import annotations

import json

from turnout.launcher.checkpoint.format.checksums import Buffer
from turnout.launcher.checkpoint.format.safetensors_layout import read_head
from turnout.launcher.errors import BadCheckpoint

KEY = "turnout"  # key in the header's metadata
MARK = '["dict","dcp",1,'  # how state_tree.flatten begins a state of torch.distributed.checkpoint's writer


def is_reshardable(shard: Buffer) -> bool:
    """True if the shard was saved through torch.distributed.checkpoint. False if the bytes are no valid shard."""
    try:
        text = json.loads(read_head(shard)[1].get(KEY, ""))["tree"]
    except (BadCheckpoint, ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(text, str) and text.startswith(MARK)

"""Whether a shard can be read in parts, by a world of any size: by what its head tells of the save that made it."""

from __future__ import annotations

import json

from turnout.launcher.checkpoint.layout import read_head
from turnout.launcher.checkpoint.sums import Buffer
from turnout.launcher.errors import BadCheckpoint

KEY = "turnout"  # of the head's metadata
MARK = '["dict","dcp",1,'  # as tree.flatten begins the state that torch.distributed.checkpoint's writer saves


def in_parts(shard: Buffer) -> bool:
    """Was it saved through torch.distributed.checkpoint? shard: it begins with the head. False for what is no shard."""
    try:
        text = json.loads(read_head(shard)[1].get(KEY, ""))["tree"]
    except (BadCheckpoint, ValueError, KeyError, TypeError, RecursionError):
        return False
    return isinstance(text, str) and text.startswith(MARK)

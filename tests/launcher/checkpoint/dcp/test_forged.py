"""A file forged with right checksums: nothing of it is unpickled, and no two saves are taken for one."""

import json
import pickle
import re
import time
from pathlib import Path

import pytest
from torch.distributed.checkpoint.api import CheckpointException

from tests.launcher.checkpoint.dcp.alone import same
from turnout.launcher.checkpoint.format.manifest import Manifest, write
from turnout.launcher.checkpoint.format.shard_file import Spec, head_of, pack, read_head, sums_of
from turnout.launcher.checkpoint.storage.posix_store import open_store
from turnout.launcher.checkpoint.storage.shard_writer import ShardWrite, persist
from turnout.launcher.errors import BadCheckpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:.*is deprecated")


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def forge(single_process, change):
    """Rewrite step 1, as somebody can who knows how to sum. change: of its tensors' bytes by name, and its tree."""
    content = single_process.shard.read_bytes()
    layout, metadata, head_bytes = read_head(content)
    data = {each.name: content[head_bytes + each.start : head_bytes + each.end] for each in layout.entries}
    about = json.loads(metadata["turnout"])
    about["tree"] = change(data, about["tree"])
    shapes = {each.name: (len(data[each.name]),) if each.dtype == "U8" else each.shape for each in layout.entries}
    packed_again = pack(Spec(each.name, each.dtype, shapes[each.name]) for each in layout.entries)
    head = head_of(packed_again, {"turnout": json.dumps(about)})
    region = memoryview(bytearray(head + b"".join(data[each.name] for each in packed_again.entries)))
    for path in single_process.folder.rglob("*.*"):
        path.unlink()
    store = open_store(str(single_process.folder))
    note = persist(store, ShardWrite("r", 1, 0, 0, 1, len(head)), region, sums_of(region), time.time())
    manifest = Manifest("r", 1, 0, 1, note.saved_s, (note.shard,))
    store.put(1, "manifest.json", [memoryview(write(manifest))], round_number=0, replace=True)


@pytest.mark.parametrize(
    ("place", "why"),
    [
        pytest.param("metadata", "not the metadata of a checkpoint", id="a pickle in place of the metadata"),
        pytest.param("value", "is no JSON", id="a pickle in place of a value"),
    ],
)
def test_a_pickle_is_refused_even_with_the_right_sums(single_process, tmp_path, place, why):
    single_process.save()
    single_process.forget()
    forge(single_process, lambda data, tree: tree)
    assert same(single_process.load(), 1.0)  # so that is how it is forged
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"), protocol=0)

    def change(data, tree):
        if place == "metadata":
            data["table"] = bomb
            return tree
        old, new = json.dumps("0.1"), json.dumps(bomb.decode())
        assert old in tree
        return tree.replace(old, new)

    forge(single_process, change)
    with pytest.raises((BadCheckpoint, CheckpointException), match=why):
        single_process.load()
    assert not (tmp_path / "exploded").exists()


def test_metadata_of_another_save_is_refused(single_process):
    single_process.save()
    single_process.forget()
    forge(single_process, lambda data, tree: re.sub(r'"save","[0-9a-f]{32}"', f'"save","{"0" * 32}"', tree))
    with pytest.raises(BadCheckpoint, match="of another save"):
        single_process.load()

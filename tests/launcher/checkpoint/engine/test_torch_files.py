"""Which torch files of a folder are loaded, in what order, and which are removed; wherever a writer was stopped."""

import json
import os
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.checkpoint.engine.torch_file import list_files, load, load_newest, remove_old_files, write_file
from turnout.launcher.checkpoint.format.manifest import All, Every, Latest
from turnout.launcher.errors import BadCheckpoint, StorageFailed


def save(folder, name, step):
    return write_file(folder, folder / name, step, lambda file: torch.save({"step": step, "name": name}, file))


def found(folder):
    """The step that is loaded, and what was told on the way."""
    events = []
    loaded = load_newest(folder, lambda word, fields: events.append(fields["step"]))
    return (loaded and loaded[1]["step"]), events


def names(folder):
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*.pt"))


class Code:
    """A pickle that would run code in the process that loads it."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.mkdir, (str(self.file),)


def test_the_file_written_last_is_the_newest_though_its_step_is_lower(tmp_path):
    for step in (10, 30, 20):
        save(tmp_path, f"{step}.pt", step)
    assert found(tmp_path) == (20, [])


@pytest.mark.parametrize(
    ("harm", "loads"),
    [
        pytest.param(lambda file: file.unlink(), (2, []), id="removed by its user"),
        pytest.param(lambda file: file.write_bytes(b""), (2, [3]), id="cut to nothing"),
        pytest.param(lambda file: os.truncate(file, 900), (2, [3]), id="torn"),
        pytest.param(lambda file: torch.save({"step": 9}, file), (2, [3]), id="another file in its place"),
    ],
)
def test_a_file_that_is_not_what_was_written_is_passed_over(tmp_path, harm, loads):
    for step in (1, 2, 3):
        save(tmp_path, f"{step}.pt", step)
    harm(tmp_path / "3.pt")
    assert found(tmp_path) == loads


@given(st.data())
def test_each_flipped_byte_is_seen(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("flips")
    file = folder / "1.pt"
    version = save(folder, "1.pt", 1)
    content = bytearray(file.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    file.write_bytes(content)
    with pytest.raises(BadCheckpoint, match="not what was written"):
        load(file, (version,))


def test_a_path_that_is_used_again_and_again_is_whole_at_every_moment(tmp_path):
    """A writer that is stopped between its note and its file leaves the file of before, which still counts."""
    save(tmp_path, "latest.pt", 1)
    shutil.copy(tmp_path / "latest.pt", tmp_path / "kept")
    save(tmp_path, "latest.pt", 2)
    assert found(tmp_path) == (2, [])
    os.rename(tmp_path / "kept", tmp_path / "latest.pt")
    assert found(tmp_path) == (1, [])


def test_a_write_that_fails_leaves_what_was_there(tmp_path):
    save(tmp_path, "latest.pt", 1)

    def full(file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_file(tmp_path, tmp_path / "latest.pt", 2, full)
    assert found(tmp_path) == (1, [])
    assert names(tmp_path) == ["latest.pt"]
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("noted", [True, False], ids=["with a note and its sum", "without a note"])
def test_no_pickle_is_trusted(tmp_path, noted):
    file = tmp_path / "7" / "rank_0.pt"
    file.parent.mkdir()
    state = {"step": 7, "code": Code(tmp_path / "was here")}
    if noted:
        write_file(tmp_path, file, 7, lambda target: torch.save(state, target))
    else:
        torch.save(state, file)
    with pytest.raises(BadCheckpoint, match="none of the checkpoints"):
        found(tmp_path)
    assert not (tmp_path / "was here").exists()


def test_files_that_dlrover_has_left_are_found_after_ours(tmp_path):
    for step in (8, 12):
        (tmp_path / str(step)).mkdir()
        torch.save({"step": step}, tmp_path / str(step) / "rank_0.pt")
    assert found(tmp_path) == (12, [])
    save(tmp_path, "ours.pt", 5)
    assert found(tmp_path) == (5, [])


@pytest.mark.parametrize(
    ("keep", "stay"),
    [
        pytest.param(All(), [1, 10, 20, 25, 30], id="all, unless it is asked for"),
        pytest.param(Latest(2), [1, 25, 30], id="the newest so many"),
        pytest.param(Every(20), [1, 20, 30], id="multiples, and the newest"),
    ],
)
def test_which_files_stay(tmp_path, keep, stay):  # DL-50
    """Only files that this saver wrote are deleted: another's file stays, and a path outside of the folder."""
    folder = tmp_path / "folder"
    (folder / "1").mkdir(parents=True)
    torch.save({"step": 1}, folder / "1" / "rank_0.pt")
    write_file(folder, tmp_path / "outside.pt", 2, lambda file: torch.save({}, file))
    for step in (10, 20, 25, 30):
        save(folder, f"{step}/rank_0.pt", step)
        remove_old_files(folder, keep, step)
    assert names(folder) == sorted(f"{step}/rank_0.pt" for step in stay)
    assert sorted(int(each.name) for each in folder.iterdir() if each.name.isdecimal()) == stay
    assert (tmp_path / "outside.pt").is_file()


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.sampled_from([Latest(1), Latest(3), Every(4)]))
def test_what_was_written_last_is_never_removed(tmp_path_factory, steps, keep):
    folder = tmp_path_factory.mktemp("rolled-back")
    for step in steps:  # a step may come again, lower than others
        save(folder, f"{step}.pt", step)
        remove_old_files(folder, keep, step)
        assert found(folder) == (step, [])


def test_the_folder_may_be_moved(tmp_path):
    save(tmp_path / "here", "a/1.pt", 1)
    os.rename(tmp_path / "here", tmp_path / "there")
    assert list_files(tmp_path / "there")[0].path == tmp_path / "there" / "a" / "1.pt"
    assert found(tmp_path / "there") == (1, [])


@pytest.mark.parametrize("text", ["", "{", "[]", '{"path": 3}', json.dumps({"path": "a", "versions": []})])
def test_a_broken_note_hides_its_file_and_no_other(tmp_path, text):
    save(tmp_path, "1.pt", 1)
    note = next((tmp_path / ".turnout" / "files").iterdir())
    save(tmp_path, "2.pt", 2)
    note.write_text(text)
    assert found(tmp_path) == (2, [])


def test_nothing_is_there(tmp_path):
    assert found(tmp_path / "not yet") == (None, [])
    with pytest.raises(StorageFailed, match="No such file"):
        load(tmp_path / "no.pt")

"""A trial of `hack.bench survival` reads the notes that its processes left."""

import pytest

from hack.bench.survival.trial import lives, split


def note(folder, round_, rank, size, began_s, alive_s):
    pid = 100 * round_ + rank
    (folder / f"life-{round_}-{rank}-{pid}").write_text(f"{round_} {rank} {size} {pid} 0 {began_s} {alive_s}\n")


@pytest.mark.parametrize(
    ("notes", "found"),
    [
        pytest.param([(1, 0, 2, 1, 5), (1, 1, 2, 1, 5), (2, 0, 1, 6, 9)], False, id="one round after the other"),
        pytest.param([(1, 0, 2, 1, 5), (1, 1, 2, 1, 3), (2, 0, 1, 4, 9)], False, id="a rank of the first was gone"),
        pytest.param([(1, 0, 2, 1, 5), (1, 1, 2, 1, 5), (2, 0, 1, 4, 9)], True, id="both whole at once"),
        pytest.param([(1, 0, 2, 1, 5), (2, 0, 1, 4, 9)], False, id="the first was never whole"),
    ],
)
def test_a_world_is_split_when_two_whole_rounds_live_at_once(tmp_path, notes, found):
    for each in notes:
        note(tmp_path, *each)
    assert split(lives(tmp_path)) is found


def test_a_note_that_is_being_written_is_no_life(tmp_path):
    note(tmp_path, 1, 0, 1, 1, 2)
    (tmp_path / "life-1-0-100.part").write_text("1 0")
    assert [life.rank for life in lives(tmp_path)] == [0]

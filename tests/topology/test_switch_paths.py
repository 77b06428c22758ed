"""Paths read tier by tier without tables, and the one line in which a path is written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.topology.world import paths
from turnout.topology.fabric import build
from turnout.topology.model import MapEntry
from turnout.topology.switch_paths import BadPath, path_text, read_path, switch_numbers

NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=12) | st.sampled_from(["a b", "%2F"])


@given(st.lists(paths(), max_size=20))
def test_rows_are_those_of_a_fabric_with_hosts_on_these_paths(drawn):
    built = build(MapEntry(f"h{at}", path, at + 1) for at, path in enumerate(drawn))
    numbers = switch_numbers(drawn)
    assert numbers.keys() == set(drawn)
    for at, path in enumerate(drawn):
        assert list(numbers[path]) == built.switch_of[1:, built.id_of_host[f"h{at}"]].tolist()


@given(st.lists(NAMES, min_size=1, max_size=15))
def test_a_path_is_read_as_it_was_written(path):
    assert read_path(path_text(path)) == tuple(path)
    assert path_text(read_path(f" {path_text(path)}\n")) == path_text(path)


def test_a_plain_path_is_written_plainly():
    assert path_text(("dc1", "spine-2", "leaf_3")) == "dc1/spine-2/leaf_3"
    assert path_text(("a/b", "50%", "c d")) == "a%2Fb/50%25/c%20d"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("a//b", "the switch name has 0 characters", id="a switch without a name"),
        pytest.param("/a", "the switch name has 0 characters", id="a slash before the root"),
        pytest.param("a/b/", "the switch name has 0 characters", id="a slash after the leaf"),
        pytest.param("a/b\x00c", "cannot be printed", id="a name that cannot be printed"),
        pytest.param("a/b\nc/d", "cannot be printed", id="two lines"),
        pytest.param("a/%FF", "stands for no character", id="an escape of half a character"),
        pytest.param("/".join("a" * 16), "16 switches, at most 15", id="too many tiers"),
        pytest.param("a" * 254, "254 characters; 1 to 253", id="a name too long"),
        pytest.param("a" * 9_000, "9000 characters, at most 8192", id="a text too long"),
    ],
)
def test_what_is_no_path_is_told(text, message):
    with pytest.raises(BadPath, match=message) as error:
        read_path(text)
    assert len(str(error.value)) < 200


def test_a_written_path_may_have_8192_characters_and_fifteen_switches():
    path = ("a" * 78 + "ä" * 90, *["ä" * 90] * 14)
    assert len(path_text(path)) == 8192
    assert read_path(path_text(path)) == path
    with pytest.raises(BadPath, match="8193 characters"):
        read_path(f"a{path_text(path)}")


def test_a_blank_text_is_no_path_and_no_fault():
    assert read_path(" \n") == ()

"""A worker's place on the fabric: which source is believed, the bounds, and what is told when it cannot be read."""

import json
import logging
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnout.launcher.agent.switch_path import (
    MAX_FILE_BYTES,
    MAX_MAP_BYTES,
    PathSource,
    PodTexts,
    SwitchPath,
    SwitchPathReader,
    find_path,
    host_names,
    path_from_text,
)
from turnout.topology.switch_paths import path_text

NOTE = "turnout.dev/switch-path"
MAP = (("topology_config", "leaf2 spine 10.0.0.1\nleaf3 spine gpu-7\n"),)
TREE = (("topology.yaml", "fabric: {dc: {spine: {leaf4: 'gpu-[1-9]'}}}"),)


def note(value, key=NOTE):
    """A line as the downward API writes it: for plain text Go quotes as JSON does."""
    return f"{key}={json.dumps(value)}\n"


@pytest.mark.parametrize(
    ("texts", "path", "source"),
    [
        pytest.param(PodTexts(), (), PathSource.NOBODY, id="nothing is given"),
        pytest.param(PodTexts(given=" \n", file="\n"), (), PathSource.NOBODY, id="blanks say nothing"),
        pytest.param(PodTexts(given="s/l"), ("s", "l"), PathSource.GIVEN, id="a path is given"),
        pytest.param(PodTexts("s/l", "s/other"), ("s", "l"), PathSource.GIVEN, id="what is given goes before the file"),
        pytest.param(PodTexts(file="dc/s/l\n"), ("dc", "s", "l"), PathSource.FILE, id="a file with the bare path"),
        pytest.param(
            PodTexts(file=note("x", "a") + note("s/l") + note("y", "z.io/b")),
            ("s", "l"),
            PathSource.FILE,
            id="a file with all annotations",
        ),
        pytest.param(PodTexts(file=note("s%2Fa/l")), ("s/a", "l"), PathSource.FILE, id="a name with a slash inside"),
        pytest.param(
            PodTexts(file="s/l", map=MAP, hosts=("gpu-7",)),
            ("s", "l"),
            PathSource.FILE,
            id="the file goes before the map",
        ),
        pytest.param(
            PodTexts(file=note("x", "other"), map=MAP, hosts=("gpu-7",)),
            ("spine", "leaf3"),
            PathSource.MAP,
            id="annotations without ours: the map",
        ),
        pytest.param(
            PodTexts(map=MAP, hosts=("gpu-8", "10.0.0.1")),
            ("spine", "leaf2"),
            PathSource.MAP,
            id="a map that knows the host by its address",
        ),
        pytest.param(
            PodTexts(map=TREE, hosts=("gpu-7",)), ("dc", "spine", "leaf4"), PathSource.MAP, id="our form of the map"
        ),
        pytest.param(
            PodTexts(map=MAP, hosts=("gpu-99",)), (), PathSource.NOBODY, id="a host that the map does not know"
        ),
        pytest.param(
            PodTexts(map=(("topology_config", " "),), hosts=("gpu-7",)), (), PathSource.NOBODY, id="a map that is empty"
        ),
    ],
)
def test_who_is_believed(texts, path, source):
    assert find_path(texts, NOTE) == SwitchPath(path, source)


@pytest.mark.parametrize(
    ("texts", "path", "message"),
    [
        pytest.param(PodTexts(given="a//b"), (), "given: 'a//b': the switch name has 0", id="a path that is none"),
        pytest.param(PodTexts("a//b", "s/l"), ("s", "l"), "given: 'a//b'", id="the next source may still know"),
        pytest.param(PodTexts(file="a/b\nc/d\n"), (), "file: ", id="a file of two paths"),
        pytest.param(PodTexts(file=note("a//b")), (), "file: 'a//b'", id="an annotation that is no path"),
        pytest.param(PodTexts(file="/".join("abcdefghijklmnop")), (), "16 switches", id="more tiers than there are"),
        pytest.param(
            PodTexts(map=(("topology_config", "leaf spine\n"),), hosts=("gpu-7",)),
            (),
            "map: line 1: a line holds three",
            id="a map with a fault counts for nothing",
        ),
        pytest.param(
            PodTexts(map=(*MAP, *TREE), hosts=("gpu-7",)), (), "map: line 0: both", id="two maps contradict one another"
        ),
        pytest.param(
            PodTexts(map=MAP), (), "map: none of NODE_NAME, NODE_IP, HOST_IP", id="nobody says which host it is"
        ),
    ],
)
def test_what_cannot_be_read_is_told_and_counts_as_unknown(texts, path, message):
    switch_path = find_path(texts, NOTE)
    assert switch_path.path == path
    (fault,) = switch_path.faults
    assert message in fault
    assert len(fault) < 300


@given(st.lists(st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=9), min_size=1, max_size=9))
def test_any_path_survives_the_annotation_and_the_downward_api(path):
    assert find_path(PodTexts(file=note("noise", "a.b/c") + note(path_text(path))), NOTE).path == tuple(path)


@pytest.mark.parametrize(
    ("quoted", "value"),
    [
        pytest.param(r"a\"b\\c", 'a"b\\c', id="quotes and backslashes"),
        pytest.param(r"\u00e9\U0001f600\x41", "\u00e9\U0001f600A", id="characters by their number"),
        pytest.param(r"\t\n", "\t\n", id="blanks"),
        pytest.param(r"\Uffffffff", "\U0010ffff", id="a number that is no character"),
    ],
)
def test_values_are_unquoted_as_go_quotes_them(quoted, value):
    assert path_from_text(f'{NOTE}="{quoted}"', NOTE) == value


@given(st.text(), st.text(), st.text(), st.lists(st.sampled_from(["a", "gpu-7"])))
def test_no_text_stops_anybody(given_, file, map_, names):
    path = find_path(PodTexts(given_, file, (("topology_config", map_), ("topology.yaml", file)), tuple(names)), NOTE)
    assert bool(path.path) == (path.source is not PathSource.NOBODY)


def test_the_hosts_names_come_from_the_environment_most_telling_first():
    environ = {"HOST_IP": "10.0.0.1", "NODE_IP": "10.0.0.1", "NODE_NAME": "gpu-7", "POD_IP": "10.9.9.9"}
    assert host_names(environ) == ("gpu-7", "10.0.0.1")
    assert host_names({"NODE_NAME": " "}) == ()


@pytest.fixture
def log_messages(caplog):
    """Give the faults that were logged so far."""
    caplog.set_level(logging.INFO, "turnout.launcher")
    return lambda: [each.why for each in caplog.records if each.message == "switch_path_unreadable"]


def test_a_file_that_comes_late_is_seen_at_the_next_look(tmp_path, log_messages):
    file = tmp_path / "annotations"
    path_reader = SwitchPathReader({}, path_file=str(file))
    assert path_reader.look() == SwitchPath()
    file.write_text(note("x", "a"))
    assert path_reader.look() == SwitchPath()
    file.write_text(note("x", "a") + note("s/l"))
    assert path_reader.look() == SwitchPath(("s", "l"), PathSource.FILE)
    assert log_messages() == []


def test_the_command_line_goes_before_the_environment():
    environ = {"TURNOUT_SWITCH_PATH": "s/env"}
    assert SwitchPathReader(environ).look().path == ("s", "env")
    assert SwitchPathReader(environ, path=("s", "flag")).look().path == ("s", "flag")


def test_a_mounted_map_is_read_as_it_changes(tmp_path):
    """The kubelet mounts a ConfigMap so: keys are links into a folder that is exchanged at once."""
    path_reader = SwitchPathReader({"NODE_NAME": "gpu-7"}, map_folder=str(tmp_path))
    assert path_reader.look() == SwitchPath()
    for at, (key, text) in enumerate((*MAP, *TREE)):
        (tmp_path / f"v{at}").mkdir()
        (tmp_path / f"v{at}" / key).write_text(text)
    for at, (key, path) in enumerate((("topology_config", "spine/leaf3"), ("topology.yaml", "dc/spine/leaf4"))):
        (tmp_path / "new").symlink_to(f"v{at}")
        (tmp_path / "new").rename(tmp_path / "..data")
        (tmp_path / key).symlink_to(f"..data/{key}")
        assert "/".join(path_reader.look().path) == path


@pytest.mark.parametrize(
    ("write", "message"),
    [
        pytest.param(lambda f: f.write_bytes(b"a" * (MAX_FILE_BYTES + 1)), "larger than 65536 bytes", id="too large"),
        pytest.param(lambda f: f.write_bytes(b"\xff\xfe"), "cannot be read", id="no text"),
        pytest.param(lambda f: f.mkdir(), "is no file", id="a folder"),
        pytest.param(os.mkfifo, "is no file", id="a pipe, which would be waited for"),
        pytest.param(lambda f: f.write_text("a//b"), "file: 'a//b'", id="no path"),
    ],
)
def test_an_unreadable_file_is_told_once_and_again_after_it_came_back(write, message, tmp_path, log_messages):
    file = tmp_path / "path"
    write(file)
    path_reader = SwitchPathReader({}, path_file=str(file))
    for _ in range(3):
        assert path_reader.look().path == ()
    (fault,) = log_messages()
    assert message in fault
    file.rmdir() if file.is_dir() else file.unlink()
    file.write_text("s/l")
    assert path_reader.look() == SwitchPath(("s", "l"), PathSource.FILE)
    file.unlink()
    write(file)
    path_reader.look()
    assert len(log_messages()) == 2


def test_a_map_is_bounded(tmp_path, log_messages):
    (tmp_path / "topology_config").write_bytes(b"\n" * (MAX_MAP_BYTES + 1))
    assert SwitchPathReader({"NODE_NAME": "gpu-7"}, map_folder=str(tmp_path)).look().path == ()
    assert "larger than 1048576 bytes" in log_messages()[0]

"""Texts as values: what is meant, and what is refused."""

import pytest

from turnout.launcher.cli import value_types
from turnout.launcher.errors import BadSettings
from turnout.launcher.health.model import NodeChecks
from turnout.launcher.settings import PlaceSettings, Std, Streams, Timing


@pytest.mark.contract("DL-32", "DL-33", "DL-100")
@pytest.mark.parametrize(
    ("read", "text", "means"),
    [
        pytest.param(value_types.parse_bounds, "3", (3, 3), id="N workers, DL-40"),
        pytest.param(value_types.parse_bounds, "2:4", (2, 4), id="MIN:MAX workers"),
        pytest.param(value_types.parse_bool, "0", False, id="0 is off"),
        pytest.param(value_types.parse_bool, "2", True, id="any other number is on, as for torchrun"),
        pytest.param(value_types.parse_bool, "False", False, id="in words"),
        pytest.param(value_types.parse_endpoint, "a.b-c_d:0", ("a.b-c_d", 0), id="host and port"),
        pytest.param(value_types.parse_endpoint, "[fe80::1]", ("fe80::1", 29400), id="IPv6 without a port"),
        pytest.param(value_types.parse_host, "[::1]", "::1", id="torchrun writes IPv6 in brackets"),
        pytest.param(value_types.parse_seconds, "0.5", 0.5, id="half a second"),
        pytest.param(value_types.parse_duration, "2", 2.0, id="two seconds"),
        pytest.param(value_types.parse_ranks, "2,0,2", (0, 2), id="ranks, in order, once"),
        pytest.param(value_types.parse_filters, "a,,b,c", ("a,b", "c"), id="two commas are one of the word"),
        pytest.param(value_types.parse_filters, "", (), id="no filters"),
        pytest.param(value_types.parse_signals, "SIGTERM, SIGUSR1", ("SIGTERM", "SIGUSR1"), id="signals"),
        pytest.param(value_types.parse_path, "/spine/leaf/", ("spine", "leaf"), id="a path with slashes around it"),
        pytest.param(value_types.parse_modules, "torch,a.b", ("torch", "a.b"), id="modules"),
        pytest.param(
            value_types.parse_box_pairs, "0:1 2:4 3:5 6:7", ((0, 1), (2, 4), (3, 5), (6, 7)), id="the guide's pairs"
        ),
        pytest.param(value_types.parse_streams, "3", Streams(Std.ALL), id="both of all"),
        pytest.param(value_types.parse_streams, "1:2,0:3", Streams(by_rank=((0, Std.ALL), (1, Std.ERR))), id="by rank"),
    ],
)
def test_what_a_text_means(read, text, means):
    assert read(text) == means


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *(
            pytest.param(value_types.parse_bounds, text, id=f"bounds {text!r}")
            for text in ("", "0", "0:2", "3:2", "1:2:3", "-1", "x")
        ),
        *(
            pytest.param(value_types.parse_endpoint, text, id=f"endpoint {text!r}")
            for text in ("", ":1", "h:", "h:x", "::1", "a b")
        ),
        *(pytest.param(value_types.parse_host, text, id=f"host {text!r}") for text in ("", "a b", "http://h")),
        *(pytest.param(value_types.parse_port, text, id=f"port {text!r}") for text in ("", "65536", "-1", "x")),
        *(
            pytest.param(value_types.parse_duration, text, id=f"duration {text!r}")
            for text in ("", "0", "-1", "inf", "x")
        ),
        *(
            pytest.param(value_types.parse_seconds, text, id=f"seconds {text!r}")
            for text in ("", "-1", "nan", "inf", "x")
        ),
        *(
            pytest.param(value_types.parse_streams, text, id=f"streams {text!r}")
            for text in ("", "4", "0:4", "0:1,", "0", "x")[:4]
        ),
        *(pytest.param(value_types.parse_ranks, text, id=f"ranks {text!r}") for text in ("", "a", "1,", "-1")),
        *(pytest.param(value_types.parse_signals, text, id=f"signals {text!r}") for text in ("", "SIGSTOP", "TERM")),
        *(pytest.param(value_types.parse_modules, text, id=f"modules {text!r}") for text in ("", "a b", "1a", "a,")),
        *(pytest.param(value_types.parse_bool, text, id=f"truth {text!r}") for text in ("", "-1", "maybe")),
        *(pytest.param(value_types.parse_processes, text, id=f"processes {text!r}") for text in ("", "0", "-1", "tpu")),
        *(pytest.param(value_types.parse_lease_name, text, id=f"lease {text!r}") for text in ("", "a", "a/b/c", "A/b")),
        *(
            pytest.param(value_types.parse_box_pairs, text, id=f"pairs {text!r}")
            for text in ("", "0", "0:1,2:3", "0:1 1:2", "0:0")
        ),
        *(pytest.param(value_types.parse_word, text, id=f"word {text!r}") for text in ("", " ")),
        *(pytest.param(value_types.parse_positive_count, text, id=f"some {text!r}") for text in ("", "0", "1.5")),
    ],
)
def test_what_no_text_means(read, text):
    with pytest.raises(value_types.BadValue, match=r"needed|only|no signal"):
        read(text)


@pytest.mark.parametrize(
    ("streams", "of"),
    [
        pytest.param(Streams(), [Std.NONE, Std.NONE], id="nothing is taken"),
        pytest.param(Streams(Std.OUT), [Std.OUT, Std.OUT], id="the same for all"),
        pytest.param(Streams(by_rank=((1, Std.ERR),)), [Std.NONE, Std.ERR], id="who is not named keeps its streams"),
    ],
)
def test_streams_of_a_process(streams, of):
    assert [streams.of(0), streams.of(1)] == of


@pytest.mark.parametrize(
    "build",
    [
        pytest.param(lambda: PlaceSettings(path=("a",) * 17), id="a path that is too long"),
        pytest.param(lambda: PlaceSettings(order=-1), id="a worker before the first"),
        pytest.param(lambda: Timing(heartbeat_s=0), id="heartbeats without a pause"),
        pytest.param(lambda: Timing(drain_grace_s=float("nan")), id="a time that is none"),
        pytest.param(lambda: NodeChecks(switchbox=True), id="a part of a check that is off"),
    ],
)
def test_bad_settings_cannot_be_built(build):
    with pytest.raises(BadSettings):
        build()

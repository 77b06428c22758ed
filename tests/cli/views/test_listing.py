"""A listing in every form, and what a watch of it prints."""

import argparse
import asyncio
import json
from dataclasses import dataclass, replace

import pytest
import yaml

from turnout.cli.verb_support.listing_output import REFRESH_S, add_namespace, add_output, namespace_of, show
from turnout.cli.views.listing import FORMS, Column, Listing, changes, text
from turnout.kube.errors import Unreachable


@dataclass(frozen=True)
class Row:
    name: str
    gpus: int
    age_s: float = 0.0
    leaf: str = "asw-1"


A, B = Row("a", 8), Row("bert", 128)


def listing(*rows, **more):
    columns = (
        Column("NAME", lambda row: row.name),
        Column("GPUS", lambda row: str(row.gpus), number=True),
        Column("LEAF", lambda row: row.leaf, wide=True),
    )
    return Listing(columns, rows, lambda row: f"row/{row.name}", "none", ignored_fields=frozenset(["age_s"]), **more)


@pytest.mark.parametrize(
    ("form", "table"),
    [
        pytest.param("table", "NAME  GPUS\na        8\nbert   128", id="a table, numbers to the right"),
        pytest.param("wide", "NAME  GPUS  LEAF\na        8  asw-1\nbert   128  asw-1", id="wide, with every column"),
        pytest.param("name", "row/a\nrow/bert", id="names as other commands take them"),
    ],
)
def test_people_read_a_listing_as_a_table(form, table):
    assert text(listing(A, B), form) == table


def test_programs_get_the_same_values_as_json_and_as_yaml():
    document = json.loads(text(listing(A, B), "json"))
    assert document == yaml.safe_load(text(listing(A, B), "yaml"))
    assert document[1] == {"name": "bert", "gpus": 128, "age_s": 0.0, "leaf": "asw-1"}


@pytest.mark.parametrize(
    ("form", "output"),
    [("table", "none\nlook elsewhere"), ("wide", "none\nlook elsewhere"), ("json", "[]"), ("yaml", "[]"), ("name", "")],
)
def test_an_empty_listing_says_so_to_people_alone(form, output):
    assert text(listing(notes=["look elsewhere"]), form) == output


def test_a_tenants_name_moves_no_cursor():
    output = text(listing(replace(A, name="\x1b[2Jx")), "table")
    assert all(line.isprintable() for line in output.split("\n"))


@pytest.mark.parametrize(
    ("now", "output"),
    [
        pytest.param([A, B], "", id="nothing has changed"),
        pytest.param([replace(A, age_s=9.0), B], "", id="time alone has passed"),
        pytest.param([A, replace(B, gpus=64)], "bert    64", id="one row has changed"),
        pytest.param([A, B, Row("c", 1)], "c        1", id="one is new"),
        pytest.param([A], "", id="one is gone"),
    ],
)
def test_a_watch_prints_what_is_new(now, output):
    assert changes(listing(*now), "table", listing(A, B).compared_values()) == output


@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_a_watch_for_programs_prints_a_document_a_change(form):
    documents = changes(listing(replace(A, gpus=1), B), form, listing(A, B).compared_values())
    read = {"json": json.loads, "yaml": yaml.safe_load, "name": str}[form](documents)
    assert read == ("row/a" if form == "name" else {"name": "a", "gpus": 1, "age_s": 0.0, "leaf": "asw-1"})


class Enough(Exception):
    """The story is over."""


class Hand:
    """A clock that notes how long it was slept on."""

    def __init__(self):
        self.slept = []

    async def sleep(self, seconds):
        self.slept.append(seconds)


def args(*argv):
    parser = argparse.ArgumentParser()
    add_output(parser)
    add_namespace(parser, "rows")
    parser.add_argument("--kubeconfig")
    parser.add_argument("--context")
    return parser.parse_args(argv)


def shown(given, *listings):
    """Show these looks: what is printed, and how long was waited between them. An error is raised by its look."""
    coming, output, clock = iter(listings), [], Hand()

    async def look():
        found = next(coming, Enough())
        if isinstance(found, Exception):
            raise found
        return listing(*found)

    try:
        asyncio.run(show(given, look, output.append, clock))
    except Enough:
        output.append("enough")
    return output, clock.slept


def test_without_watch_it_looks_once():
    assert shown(args("-o", "name"), [A]) == (["row/a"], [])


def test_a_watch_goes_on_over_an_api_server_that_is_away():
    away = Unreachable("GET", "/", 0, "away")
    output, slept = shown(args("-w", "-o", "name"), [A], [A], away, [A, B])
    assert output == ["row/a", "row/bert", "enough"]
    assert slept == [REFRESH_S] * 4


@pytest.mark.parametrize(
    ("argv", "output"),
    [
        pytest.param([], "table", id="a table without any word"),
        *(pytest.param(["-o", form], form, id=form) for form in FORMS),
    ],
)
def test_the_form_is_what_is_asked_for(argv, output):
    assert args(*argv).output == output


@pytest.mark.parametrize(
    ("argv", "namespace"),
    [
        pytest.param(["-n", "team-a"], "team-a", id="the one that is named"),
        pytest.param(["-A"], "", id="all"),
        pytest.param([], "mine", id="that of the context"),
    ],
)
def test_the_namespace_is_named_all_or_the_contexts(argv, namespace, tmp_path):
    config = tmp_path / "config"
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "mine"}}
    kubeconfig = {
        "clusters": [{"name": "c", "cluster": {}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [context],
    }
    config.write_text(yaml.safe_dump({**kubeconfig, "current-context": "c"}))
    assert namespace_of(args("--kubeconfig", str(config), *argv)) == namespace


@pytest.mark.parametrize("argv", [["-o", "xml"], ["-n", "a", "-A"], ["--json"]])
def test_what_makes_no_sense_is_usage(argv):
    with pytest.raises(SystemExit) as ended:
        args(*argv)
    assert ended.value.code == 2

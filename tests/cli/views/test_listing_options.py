"""A listing sorted by a column, and without the line over its columns."""

from dataclasses import dataclass

import pytest

from turnout.cli.jobs import JobRow
from turnout.cli.jobs import listing as jobs_listing
from turnout.cli.nodes import listing as nodes_listing
from turnout.cli.verb_support.cluster_flags import duration_s
from turnout.cli.verbs import jobs, nodes, queues, top
from turnout.cli.views import queues as queues_view
from turnout.cli.views import top as top_view
from turnout.cli.views.listing import Column, Listing, text


@dataclass(frozen=True)
class Fruit:
    name: str
    count: str


LISTING = Listing(
    (Column("NAME", lambda row: row.name), Column("COUNT", lambda row: row.count, number=True)),
    [Fruit("b", "10"), Fruit("a", "-"), Fruit("c", "9.5%")],
    lambda row: row.name,
    "none",
    ("a note",),
)


@pytest.mark.parametrize(
    ("by", "names"),
    [
        pytest.param("", "bac", id="as it is"),
        pytest.param("NAME", "abc", id="by a text"),
        pytest.param("COUNT", "cba", id="by a number, what is none last"),
    ],
)
def test_rows_are_sorted_by_a_column(by, names):
    assert "".join(row.name for row in LISTING.sorted_by(by).rows) == names


def test_without_headers_only_rows_are_left():
    assert text(LISTING, "table", headers=False).split("\n") == ["b        10", "a         -", "c      9.5%"]
    assert text(Listing(LISTING.columns, [], LISTING.name, "none", ("a note",)), "table", headers=False) == ""


def test_ages_and_pods_are_sorted_as_numbers():
    rows = [
        JobRow("ns", "PyTorchJob", name, "New", running, 12, 0, age_s)
        for name, running, age_s in (("a", 10, 90.0), ("b", 9, 3600.0), ("c", 0, None))
    ]
    assert [row.name for row in jobs_listing(rows).sorted_by("AGE").rows] == ["a", "b", "c"]
    assert [row.name for row in jobs_listing(rows).sorted_by("PODS").rows] == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("offered", "listing"),
    [
        pytest.param(jobs.COLUMNS, jobs_listing([]), id="jobs"),
        pytest.param(nodes.COLUMNS, nodes_listing([]), id="nodes"),
        pytest.param(queues.COLUMNS, queues_view.listing([]), id="queues"),
        pytest.param(top.COLUMNS, top_view.listing("job", []), id="top"),
    ],
)
def test_the_columns_that_are_offered_are_those_of_the_listing(offered, listing):
    assert set(offered) <= {column.head for column in listing.columns}


@pytest.mark.parametrize(("typed", "seconds"), [("5", 5.0), ("10s", 10.0), ("1.5m", 90.0), ("2h", 7200.0), ("0", 0.0)])
def test_a_time_is_written_as_kubectl_takes_it(typed, seconds):
    assert duration_s(typed) == seconds

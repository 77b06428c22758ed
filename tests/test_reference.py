"""docs/reference: made from the code, current, and nothing that a user meets is without a text."""

import argparse
import re
from pathlib import Path

import pytest

from hack.codegen import reference
from hack.codegen.reference import FOLDER, Undocumented, labels_page, pages, registries, values_page

ROOT = Path(__file__).resolve().parents[1]


def test_the_pages_are_those_that_the_code_makes():
    generated_pages = pages()
    assert sorted(page.name for page in FOLDER.glob("*.md")) == sorted(generated_pages)
    old = [name for name, text in generated_pages.items() if (FOLDER / name).read_text() != text]
    assert old == [], "python -m hack.codegen.reference --write"


def test_every_metric_of_the_code_is_in_a_registry():
    served = {metric.name for registry in registries().values() for metric in registry.collect()}
    registered_names = set()
    for folder in ("autoscaler", "controllers", "kube", "launcher", "scheduler_ext"):
        for module in (ROOT / folder).rglob("*.py"):
            found = r'\b(?:Counter|Gauge|Histogram|GaugeMetricFamily|CounterMetricFamily)\(\s*"(turnout_\w+)"'
            registered_names |= set(re.findall(found, module.read_text()))
    assert registered_names
    assert {name.removesuffix("_total") for name in registered_names} - served == set()


def one_flag(text):
    parser = argparse.ArgumentParser(prog="turnout-x")
    parser.add_argument("--size", help=text)
    return parser


@pytest.mark.parametrize(
    ("write", "what"),
    [
        pytest.param(lambda: reference.options("turnout-x", one_flag(None)), "turnout-x: --size", id="a flag"),
        pytest.param(lambda: labels_page('# Ours.\nX = "turnout.dev/x"\n'), "X has no comment", id="an annotation"),
    ],
)
def test_a_thing_without_a_text_is_an_error(write, what):
    with pytest.raises(Undocumented, match=re.escape(what)):
        write()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        pytest.param("# -- About.\na: 1\n", ["| `a` | About. | `1` |"], id="one value"),
        pytest.param(
            "part:\n  # -- Of two\n  # lines.\n  b: [1, 2]\n",
            ["| `part.b` | Of two lines. | `[1, 2]` |"],
            id="nested",
        ),
        pytest.param("# -- C.\ny: 'q  # z'\n", ['| `y` | C. | `"q  # z"` |'], id="a text with a number sign"),
        pytest.param("# -- M.\nz-a:\n  k: 1\n", ['| `z-a` | M. | `{"k": 1}` |'], id="a map on the next line"),
    ],
)
def test_values_are_told_by_their_comments(text, rows):
    assert [line for line in values_page(text).splitlines() if line.startswith("| `")] == rows


def test_a_flag_is_told_with_its_default():
    parser = argparse.ArgumentParser(prog="turnout-x")
    parser.add_argument("--size", type=int, default=3, metavar="N", help="how many (%(default)s)")
    assert reference.options("turnout-x", parser).splitlines()[2:] == ["| `--size N` | How many. | `3` |"]

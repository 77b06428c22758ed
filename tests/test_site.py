"""The docs site: every page is in the navigation once, its links lead on, and nothing comes from another host."""

import tomllib
from pathlib import Path

import pytest

from hack.docs.__main__ import repository_files
from hack.docs.stage import foreign_resources, stage, with_local_search_worker, with_site_paths

ROOT = Path(__file__).resolve().parents[1]
CONFIGURATION = tomllib.loads((ROOT / "hack/docs/zensical.toml").read_text())
FILES = {
    "docs/jobs.md",
    "docs/zh/jobs.md",
    "README.md",
    "deploy/x.yaml",
    "deploy/grafana/README.md",
    "docs/picture.svg",
}


def listed(entries):
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            for each in entry.values():
                yield from listed([each] if isinstance(each, str) else each)


def test_the_site_knows_pages_by_their_places_there():
    assert (
        with_site_paths('{ "A" = "docs/jobs.md" }, "README.md", "site.css"')
        == '{ "A" = "jobs.md" }, "repository/README.md", "site.css"'
    )


def test_every_page_is_in_the_navigation_once():
    pages = sorted(path for path in repository_files() if path.endswith(".md"))
    assert sorted(listed(CONFIGURATION["project"]["nav"])) == pages


@pytest.mark.parametrize(
    ("path", "before", "after", "files"),
    [
        pytest.param("docs/jobs.md", "[b](zh/jobs.md#c)", "[b](zh/jobs.md#c)", (), id="a link within docs stays"),
        pytest.param("docs/jobs.md", "[r](../README.md)", "[r](repository/README.md)", (), id="out of docs"),
        pytest.param("README.md", "[a](docs/jobs.md#c)", "[a](../jobs.md#c)", (), id="into docs"),
        pytest.param(
            "docs/zh/jobs.md",
            "[x](../../deploy/x.yaml)",
            "[x](../repository/deploy/x.yaml)",
            ("deploy/x.yaml",),
            id="a file of the repository comes along",
        ),
        pytest.param(
            "README.md", "[g](deploy/grafana)", "[g](deploy/grafana/README.md)", (), id="a folder leads to its README"
        ),
        pytest.param("README.md", "[d](deploy/)", "d", (), id="a folder without a README is text"),
        pytest.param("README.md", "[w](https://example.com/a)", "[w](https://example.com/a)", (), id="another host"),
        pytest.param("README.md", "[h](#here)", "[h](#here)", (), id="an anchor of the same page"),
        pytest.param(
            "README.md", "![p](docs/picture.svg)", "![p](../picture.svg)", ("docs/picture.svg",), id="a picture"
        ),
        pytest.param(
            "docs/jobs.md",
            "```\n[r](../README.md)\n```\n",
            "```\n[r](../README.md)\n```\n",
            (),
            id="code stays as it is",
        ),
    ],
)
def test_where_links_of_a_page_lead_on_the_site(path, before, after, files):
    staged = stage(path, before, FILES)
    assert (staged.text, staged.files) == (after, files)


@pytest.mark.parametrize(
    ("page", "way"),
    [
        pytest.param("index.html", "iframe-worker.js", id="at the top"),
        pytest.param("zh/jobs.html", "../iframe-worker.js", id="in a folder"),
    ],
)
def test_search_without_a_server_runs_a_script_of_ours(page, way):
    html = with_local_search_worker(page, '<script src="https://cdn.example.com/iframe-worker/shim"></script>')
    assert html == f'<script src="{way}"></script>'
    assert foreign_resources(html) == []


@pytest.mark.parametrize(
    ("html", "loads"),
    [
        pytest.param('<a href="https://example.com/">x</a>', [], id="a link that a reader follows"),
        pytest.param('<script src="a.js"></script>', [], id="a script of ours"),
        pytest.param('<script src="https://example.com/a.js">', ["https://example.com/a.js"], id="a script"),
        pytest.param('<link rel="stylesheet" href="//example.com/a.css">', ["//example.com/a.css"], id="a style"),
        pytest.param(
            "@font-face { src: url('https://example.com/a.woff2') }", ["https://example.com/a.woff2"], id="a font"
        ),
        pytest.param('<link href="https://example.com/a" rel="canonical">', [], id="the address of the page itself"),
    ],
)
def test_what_a_page_would_load_from_another_host(html, loads):
    assert foreign_resources(html) == loads

"""Every path, section, id and address that a source cites is here."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from hack.lint import citations, contract

ROOT = Path(__file__).resolve().parents[1]
READ = (".py", ".md", ".yaml", ".cfg", ".toml", "Makefile", ".ci/run")
NOT_OURS = (
    "docs/facts/",
    "tests/crds/",
    "tests/docs/test_code_blocks.py",  # pages that a test invents
    "tests/test_site.py",
    "tests/docs/test_translations.py",
    "tests/test_citations.py",
    "tests/test_contract.py",
    "tests/test_words.py",
    "hack/lint/citations.py",
    "hack/docs/zensical.toml",  # its paths begin below docs/; tests/test_site.py holds them
)
PAGES = {
    "docs/design.md": "## 3. A gang\n## 5. A worker\n",
    "docs/facts/extender.md": "## 0. What decides\n7. Never.\n### 1.4 Order of calls\n",
}


@cache
def known():
    differences = re.findall(r"^\| (SD-\d\d) \|", (ROOT / "docs/facts/README.md").read_text(), re.M)
    return {row.id for row in contract.read()[0]} | set(differences)


def sources():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [name for name in listed if name.endswith(READ) and not name.startswith(NOT_OURS)]


def test_every_citation_of_this_checkout_leads_somewhere():
    pages = {path.relative_to(ROOT).as_posix(): path.read_text() for path in ROOT.glob("docs/**/*.md")}
    wrong = {
        name: found
        for name in sources()
        if (ROOT / name).exists() and (found := list(citations.faults((ROOT / name).read_text(), pages, known())))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("Source: docs/design.md 5", [], id="a section that is there"),
        pytest.param("Source: docs/design.md 4", ["docs/design.md has no section 4"], id="a section that is not"),
        pytest.param("Source: docs/facts/extender.md 1.4 and 0.7; CS-01", [], id="two sections and an id"),
        pytest.param(
            "docs/facts/extender.md 1.4, 1.9.", ["docs/facts/extender.md has no section 1.9"], id="the second is not"
        ),
        pytest.param("docs/nowhere.md", ["docs/nowhere.md is not here"], id="a page that is not there"),
        pytest.param("facts/extender.md", ["facts/extender.md is not here"], id="a page of somebody's notes"),
        pytest.param("as issue 7 states", ["issue 7 is not here"], id="an issue that readers do not have"),
        pytest.param("Source: CS-99", ["CS-99 is no row of the contract"], id="an id that is no row"),
        pytest.param("one way, SD-13", [], id="an id of the table of differences"),
        pytest.param("https://slsa.dev/provenance/v1 https://in-toto.io/Statement/v1", [], id="the names of types"),
        pytest.param(
            "http://127.0.0.1:80/ http://10.0.0.1. http://localhost:9 http://localhost", [], id="no addresses"
        ),
        pytest.param(
            "http://10.evil.net and https://localhost.evil.org and https://127.evil.org",
            [
                "http://10.evil.net is an address outside this repository",
                "https://localhost.evil.org is an address outside this repository",
                "https://127.evil.org is an address outside this repository",
            ],
            id="addresses that begin as numbers or this machine do",
        ),
        pytest.param(
            "see https://kubernetes.io/docs",
            ["https://kubernetes.io is an address outside this repository"],
            id="an address outside",
        ),
    ],
)
def test_what_is_found_fault_with(text, faults):
    assert list(citations.faults(text, PAGES, {"CS-01", "SD-13"})) == faults

"""The check of words: names, headings, and paths that sources cite."""

from textwrap import dedent

import pytest

from hack.lint.words import faults, main

FILES = {"hack", "hack/lint", "hack/lint/words.py", "docs/design.md", "docs", "tests/kit/world.py"}


def found(text, path="cli/a.py"):
    return [(each.line, each.text.partition(";")[0]) for each in faults(path, dedent(text).lstrip("\n"), FILES)]


@pytest.mark.slow  # `make check` runs it
def test_this_checkout_has_no_fault():
    assert main() == 0


@pytest.mark.parametrize(
    ("text", "word"),
    [
        pytest.param("class HouseKeeper: ...", "Keeper in HouseKeeper", id="a class"),
        pytest.param("def open_doors(): ...", "doors in open_doors", id="a function, in the plural"),
        pytest.param("def f(guest): ...", "guest in guest", id="an argument"),
        pytest.param("YARD_S = 1", "YARD in YARD_S", id="a constant"),
        pytest.param("f.sight = 1", "sight in sight", id="an attribute"),
        pytest.param("import a as papers", "papers in papers", id="a name given to a module"),
        pytest.param("match f:\n case [hands]: ...", "hands in hands", id="a pattern"),
    ],
)
def test_a_private_word_in_a_name_is_told_where_the_name_is_bound(text, word):
    assert [message for _, message in found(text)] == [f"name: {word}"]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("from a import ward\nward.keeper()", id="a name of somebody else's, used"),
        pytest.param("forward = award = bookkeeping = backward_s = 1", id="a word inside of another"),
        pytest.param("a = 'yard'", id="a string"),
        pytest.param("handshake = handle = 1", id="words of the field"),
    ],
)
def test_what_is_no_fault_of_a_name(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("path", "text", "faults"),
    [
        pytest.param("docs/the-lender.md", "", [(1, "file name: lender in docs/the-lender.md")], id="a page"),
        pytest.param(
            "docs/a.md",
            "# Of it\n## The keeper's part\n",
            [(2, "heading: keeper in ## The keeper's part")],
            id="a heading",
        ),
        pytest.param(
            "docs/a.md", "the keeper\n```sh\n# keeper\n```\n## `--keeper`\n", [], id="prose, code, and a literal name"
        ),
        pytest.param(
            "tests/launcher/keeper.py",
            "def ward(): ...",
            [(1, "file name: keeper in tests/launcher/keeper.py"), (1, "name: ward in ward")],
            id="a file, and a name in it",
        ),
    ],
)
def test_file_names_headings_and_rooms(path, text, faults):
    assert found(text, path) == faults


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("def told(): ...", ["told"], id="a function"),
        pytest.param("def f(_seen): ...", ["_seen"], id="a parameter, with an underscore"),
        pytest.param("self.kept = 1", ["kept"], id="a field of an object"),
        pytest.param("other.kept = told = 1", ["told"], id="a variable; not a field of another's object"),
        pytest.param("kept_gpus = told.count", [], id="a participle with its noun"),
    ],
)
def test_a_bare_word_is_no_name(text, faults):
    assert found(text) == [(1, f"name: {name} is no name by itself") for name in faults]
    assert found(text, "tests/a.py") == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param("# see hack/lint/words.py", [], id="a file that is here"),
        pytest.param("# see hack/lint and hack/lint/", [], id="a folder, with a slash or without"),
        pytest.param("# see preprocess/no.py", [(1, "preprocess/no.py")], id="a package of the product"),
        pytest.param("# see hack/lint/word.py", [(1, "hack/lint/word.py")], id="a file that is not"),
        pytest.param(
            '"""Read.\n\nThe source is docs/plan.md.\n"""', [(3, "docs/plan.md")], id="its line in a docstring"
        ),
        pytest.param('a = "hack/lint/word.py"', [], id="a string that is used"),
        pytest.param("# /tmp/hack/lint/word.py, x/tests/y.py, hack/<name>.py, tests/*.py", [], id="no paths of ours"),
        pytest.param("# tests/kit/world.py::test_x", [], id="a test in a file"),
    ],
)
def test_paths_in_comments_and_docstrings_are_here(text, faults):
    assert found(text) == [(line, f"path: {path} is not here") for line, path in faults]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        pytest.param(f"def test_{'x' * 65}(): ...", [], id="70 characters, the most"),
        pytest.param(f"def test_{'x' * 66}(): ...", [(1, 71)], id="one more"),
        pytest.param(f"async def test_{'x' * 66}(): ...", [(1, 71)], id="a coroutine"),
        pytest.param(f"class TestA:\n def test_{'x' * 70}(self): ...", [(2, 75)], id="a method"),
    ],
)
def test_the_name_of_a_test_is_bounded(text, faults):
    assert [(line, name.rpartition(":")[0]) for line, name in found(text)] == [
        (line, f"name: {length} characters, 70 at most") for line, length in faults
    ]

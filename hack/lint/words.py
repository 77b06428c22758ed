"""Check the words of names and headings, and the paths that sources cite: `python -m hack.lint.words`.

A name is checked where it is bound, and that of a test has a bound on its length. docs/glossary.md has the words. Ruff
checks docstrings; how text cites docs and the contract is checked in citations.py.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

from hack.lint.architecture import LAYERS
from hack.lint.source_tree import BESIDE, statements

ROOT = Path(__file__).resolve().parents[2]

# Words that names must not have, and the field's word to use instead.
FORBIDDEN_WORDS = {
    "adviser": "extender",
    "blow": "fault event",
    "book": "cache, plan cache",
    "deed": "fault injector",
    "door": "listener, endpoint",
    "errand": "member task",
    "guest": "session, connection",
    "hands": "backend, writer",
    "keeper": "daemon",
    "lender": "autoscaler",
    "papers": "docs, pages",
    "rim": "handlers",
    "shelf": "store",
    "shelve": "store",
    "shepherd": "launcher",
    "sight": "informers",
    "teller": "event recorder",
    "trainee": "training script",
    "ward": "cache, rank store",
    "yard": "local cluster",
}
# Participles, adverbs, adjectives and pronouns that are no name by themselves: a reader has to guess their noun. No
# function, class, parameter, field or variable of the product has such a name.
_BARE = """
again alone anew apart asked asleep barred beside brought called came dealt ever freed gave gives
gone got held heard helps here hope hoped judged kept learnt lifted looked looks made meant near
nobody none owed placed said seen sought spared stands standing stood such taken tells there told
tried waits walked wanted went whole whom whose wished within written
"""
BARE_WORDS = frozenset(_BARE.split())
MAX_TEST_NAME = 70  # characters: a rule that is longer than this wants to be said more plainly
NOT_OURS = ("docs/facts/", "hack/controlplane/modules/", "hack/locks/", "tests/crds/", "deploy/crds/")

_NAME = re.compile(r"[^\W\d]\w*")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W_]+")
_FOLDERS = "|".join(sorted({*LAYERS, *BESIDE, "deploy", "docs", "examples", "turnout"}))
_PATH = re.compile(
    rf"(?<![\w./<{{-])(?:{_FOLDERS})/[\w/-]*\w(?:\.(?:py|md|ya?ml|toml|txt|in|json|sh)\b(?!\w))?(?![\w{{<*-])"
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One place where a word or a path is not as the rules want it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


def faults(path: str, text: str, files: Collection[str]) -> Iterator[Fault]:
    """Yield the faults of one file: forbidden words in names and headings, long test names, paths that do not exist.

    path: in the repository; files below NOT_OURS have no faults. text: of the file. files: the paths of the repository,
    and all folders with one of them. Raises SyntaxError for a .py file that is no valid Python.
    """
    if path.startswith(NOT_OURS):
        return
    yield from (Fault(path, 1, f"file name: {why}") for why in _forbidden_words_in(path))
    if path.endswith(".md"):
        yield from _headings(path, text)
    if path.endswith(".py"):
        tree = ast.parse(text)
        inside = tuple(statements(tree))
        if any(
            map(_forbidden_words_in, set(_NAME.findall(text)))
        ):  # else none is bound: an expression may bind one, too
            yield from _names(path, tree)
        yield from _lengths(path, inside)
        if path.split("/", 1)[0] in LAYERS:
            yield from _bare_names(path, tree)
        yield from _path_faults(path, text, inside, files)


@cache
def _forbidden_words_in(name: str) -> tuple[str, ...]:
    """Return a sentence for each forbidden word in a name or heading; () for none."""
    messages = []
    for part in _PART.findall(name):
        word = part.lower()
        one = next((each for each in (word, word.removesuffix("s")) if each in FORBIDDEN_WORDS), None)
        if one is not None:
            messages.append(f"{part} in {name}; the field's word is {FORBIDDEN_WORDS[one]}")
    return tuple(messages)


def _headings(path: str, text: str) -> Iterator[Fault]:
    """Yield a fault for each forbidden word in a heading of a Markdown page. Code is skipped.

    path: of the page, for the faults. text: its content.
    """
    fenced = False
    for line, each in enumerate(text.splitlines(), 1):
        fenced ^= each.startswith("```")
        if each.startswith("#") and not fenced:
            yield from (
                Fault(path, line, f"heading: {why}") for why in _forbidden_words_in(re.sub(r"`[^`]*`", "", each))
            )


def _names(path: str, tree: ast.AST) -> Iterator[Fault]:
    """Yield a fault for each forbidden word in a name that the module binds. path: of the module, for the faults."""
    for node in ast.walk(tree):
        for name in _bound_names(node):
            yield from (Fault(path, getattr(node, "lineno", 1), f"name: {why}") for why in _forbidden_words_in(name))


def _bare_names(path: str, tree: ast.AST) -> Iterator[Fault]:
    """Yield a fault for each defined name that is only an adjective, participle or the like (BARE_WORDS).

    path: of the module, for the faults.
    """
    for node in ast.walk(tree):
        for name in definitions(node):
            if name.strip("_") in BARE_WORDS:
                yield Fault(path, getattr(node, "lineno", 1), f"name: {name} is no name by itself; add its noun")


def definitions(node: ast.AST) -> Iterator[str]:
    """Yield the name that a node itself defines: of a function, class, parameter, variable or attribute of `self`.

    Other nodes define none. The node's children are not visited.
    """
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(attr=name, ctx=ast.Store(), value=ast.Name(id="self")):
            yield name


def _lengths(path: str, inside: Iterable[ast.AST]) -> Iterator[Fault]:
    """Yield a fault for each test name above MAX_TEST_NAME characters.

    path: of the module, for the faults. inside: the statements of the module.
    """
    for node in inside:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                if len(name) > MAX_TEST_NAME:
                    yield Fault(path, node.lineno, f"name: {len(name)} characters, {MAX_TEST_NAME} at most: {name}")


def _bound_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that this node binds, without those of its children."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.alias(asname=str(name)) | ast.ExceptHandler(name=str(name)):
            yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield name


def _path_faults(path: str, text: str, inside: Iterable[ast.AST], files: Collection[str]) -> Iterator[Fault]:
    """Yield a fault for each path in a comment or a docstring that does not exist in the repository.

    path, text, inside: of the module: its path, its content and its statements. files: all paths of the repository.
    """
    for line, words in (*_comments(text, files), *_string_statements(inside)):
        for at, found in _missing_paths(words, files):
            yield Fault(path, line + words.count("\n", 0, at), f"path: {found} is not here")


def _missing_paths(words: str, files: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield (position in `words`, path) for each path in the text `words` that is not in `files`."""
    for found in _PATH.finditer(words):
        if found[0].removesuffix("/") not in files:
            yield found.start(), found[0]


def _comments(text: str, files: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield (line number, text) of the comments. Yield nothing if no line with a # names a missing path.

    text: of a Python file. files: the paths of the repository and their folders.
    """
    if any("#" in line and any(_missing_paths(line, files)) for line in text.splitlines()):
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT:
                yield token.start[0], token.string


def _string_statements(inside: Iterable[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield (first line, text) of the strings that are statements, such as docstrings. inside: those of a module."""
    for node in inside:
        match node:
            case ast.Expr(value=ast.Constant(value=str(words))):
                yield node.lineno, words


def tracked_files(root: Path) -> list[str]:
    """Return the paths, relative to `root`, of the files of a checkout that git knows or would add, without links.

    Raises CalledProcessError if `root` is no checkout.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.splitlines()
    return [path for path in listed if (root / path).is_file() and not (root / path).is_symlink()]


def main() -> int:
    """Print every fault of this tree to stderr. Return 1 if there is one, else 0."""
    listed = tracked_files(ROOT)
    files = {*listed, *(above.as_posix() for path in listed for above in PurePosixPath(path).parents)}
    found = [
        fault
        for path in listed
        if path.endswith((".py", ".md", ".yaml", ".txt", ".toml", ".cfg", ".json", ".sh"))
        for fault in faults(path, (ROOT / path).read_text(), files)
    ]
    print("".join(f"{fault}\n" for fault in found), end="", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""Check that each code block of the docs is run by a test, or says why not: `python -m hack.lint.code_blocks`.

The line before a block names the test, `<!-- run by: tests/test_docs.py::test_name -->`, or the reason,
`<!-- not run: it needs a GPU -->`. A test gets its blocks by `run_by`, so the block that the page shows is the block
that the test reads. The check follows the names that the test uses until it finds that call.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Facts quote other projects.
NOT_OURS = ("docs/facts/", "CHANGELOG.md")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[\w-]*)[^`\n]*\n(?P<text>.*?)^ *```[ ]*$", re.M | re.S)
_OTHER_FENCE = re.compile(r"^ *(~~~|````)", re.M)
_COMMENT = re.compile(r"\s*<!-- (.*) -->\s*")
_RUN_BY = re.compile(r"run by: (tests/[\w/]+\.py)::(\w+)")


@dataclass(frozen=True, slots=True)
class Block:
    """One code block of a page."""

    page: str  # path in the repository
    line: int  # of the fence, from 1
    language: str
    text: str
    comments: tuple[str, ...] = ()  # on the lines before, the nearest last

    @property
    def test(self) -> str:
        """Return the id of the test that runs it, "" where none does."""
        found = [match for each in self.comments if (match := _RUN_BY.fullmatch(each))]
        return f"{found[-1][1]}::{found[-1][2]}" if found else ""

    @property
    def not_run(self) -> str:
        """Return the reason why no test runs it, "" where there is none."""
        return next((each.removeprefix("not run: ") for each in self.comments if each.startswith("not run: ")), "")

    @property
    def place(self) -> str:
        """Return its page and line, as an editor reads them."""
        return f"{self.page}:{self.line}"


def blocks(page: str, text: str) -> Iterator[Block]:
    """Yield the code blocks of one page, in order."""
    for match in _FENCE.finditer(text):
        before = text[: match.start()].splitlines()
        comments: list[str] = []
        while before and (
            comment := _COMMENT.fullmatch(before[-1 - len(comments)] if len(comments) < len(before) else "")
        ):
            comments.append(comment[1])
        line = len(before) + 1
        yield Block(page, line, match["language"], match["text"], tuple(reversed(comments)))


def other_fences(page: str, text: str) -> Iterator[str]:
    """Yield a fault for each fence of ~~~ or of more than three backticks on a page: `blocks` does not read these."""
    without_blocks = _FENCE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for match in _OTHER_FENCE.finditer(without_blocks):
        line = without_blocks.count("\n", 0, match.start()) + 1
        yield f"{page}:{line}: a code block begins and ends with three backticks"


def pages() -> Mapping[str, str]:
    """Return the text of each page whose blocks are checked, by its path."""
    found = (page for folder in ("docs", "deploy", "examples") for page in ROOT.glob(f"{folder}/**/*.md"))
    paths = sorted(page.relative_to(ROOT).as_posix() for page in (*ROOT.glob("*.md"), *found))
    return {path: (ROOT / path).read_text() for path in paths if not path.startswith(NOT_OURS)}


@cache
def every_block() -> tuple[Block, ...]:
    """Return the code blocks of all pages, in the order of their paths."""
    return tuple(block for path, text in pages().items() for block in blocks(path, text))


def run_by(test: str) -> tuple[Block, ...]:
    """Return the code blocks whose comment names this test by its ID. Raises LookupError without any."""
    found = tuple(block for block in every_block() if block.test == test)
    if not found:
        raise LookupError(f"no code block is `<!-- run by: {test} -->`")
    return found


def fault(block: Block) -> str:
    """Return what is wrong with the comment before a block; "" if nothing is."""
    if bool(block.test) == bool(block.not_run):
        return "needs `<!-- run by: tests/….py::test_… -->` or `<!-- not run: reason -->` on the line before"
    missing = [
        path for path in re.findall(r"(?:tests|examples)/[\w/.-]*\w", block.not_run) if not (ROOT / path).exists()
    ]
    return f"{missing[0]} does not exist" if missing else unread_reason(block.test) if block.test else ""


@cache
def unread_reason(test: str) -> str:
    """Return why a test does not read the blocks that name it; "" if it does. test: its ID, path::name."""
    path, _, name = test.partition("::")
    if not (ROOT / path).is_file():
        return f"{path} does not exist"
    if name not in _definitions(path):
        return f"{path} has no {name}"
    return "" if _reads(path, name, test, set()) else f"{test} does not call run_by({test!r})"


def _reads(path: str, name: str, test: str, met: set[tuple[str, str]]) -> bool:
    """Return True if a definition, or another that it uses, calls run_by for this test.

    path, name: of the definition. met: definitions that were looked at, which are skipped; this call adds to it.
    """
    if (path, name) in met:
        return False
    met.add((path, name))
    defined, imported = _definitions(path), _imports(path)
    for node in defined.get(name, ()):
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and _is_call(each, test):
                return True
            for used in _names(each):
                if used in defined and _reads(path, used, test, met):
                    return True
                if used in imported and _reads(*imported[used], test, met):
                    return True
            if isinstance(each, ast.Constant) and isinstance(each.value, str) and _script_reads(path, each.value, test):
                return True
    return False


def _is_call(call: ast.Call, test: str) -> bool:
    """Return True if this is a call of run_by with the ID of this test."""
    name = call.func.id if isinstance(call.func, ast.Name) else getattr(call.func, "attr", "")
    return name == "run_by" and any(isinstance(each, ast.Constant) and each.value == test for each in call.args)


def _names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node uses. The parameters of a test count, because they are fixtures."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg


def _script_reads(path: str, word: str, test: str) -> bool:
    """Return True if `word` is a script in the test's folder that calls run_by for this test."""
    if not re.fullmatch(r"[a-z_]+(\.py)?", word):
        return False
    script = (ROOT / path).parent / "scripts" / f"{word.removesuffix('.py')}.py"
    if not script.is_file():
        return False
    return any(isinstance(each, ast.Call) and _is_call(each, test) for each in ast.walk(ast.parse(script.read_text())))


@cache
def _tree(path: str) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@cache
def _definitions(path: str) -> Mapping[str, tuple[ast.stmt, ...]]:
    """Return the top-level statements of a module, by each name that they bind."""
    found: dict[str, tuple[ast.stmt, ...]] = {}
    for node in _tree(path).body:
        bound: list[str] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            bound = [node.name]
        elif isinstance(node, ast.Assign):
            bound = [each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)]
        for name in bound:
            found[name] = (*found.get(name, ()), node)
    return found


@cache
def _imports(path: str) -> Mapping[str, tuple[str, str]]:
    """Return what a module imports from test modules: local name -> (path of the module, name there)."""
    found: dict[str, tuple[str, str]] = {}
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tests."):
            module = f"{node.module.replace('.', '/')}.py"
            if (ROOT / module).is_file():
                found |= {each.asname or each.name: (module, each.name) for each in node.names}
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print every block and its fault. Return 1 if there is a fault, else 0. argv: None for that of this process."""
    parser = argparse.ArgumentParser(prog="code_blocks", description="List the code blocks of the docs.")
    parser.add_argument("--faults", action="store_true", help="only those whose comment is wrong")
    args = parser.parse_args(argv)
    found = every_block()
    wrong = [f"{block.place}: {why}" for block in found if (why := fault(block))]
    wrong += [why for path, text in pages().items() for why in other_fences(path, text)]
    if not args.faults:
        for block in found:
            how = f"run by {block.test}" if block.test else f"not run: {block.not_run}" if block.not_run else "?"
            print(f"{block.place} [{block.language or 'text'}] {how}")
        run = sum(bool(block.test) for block in found)
        print(f"{len(found)} blocks: {run} run, {len(found) - run} not run")
    for why in wrong:
        print(why, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

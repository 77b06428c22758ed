"""Print how large and how readable a tree is: lines, names, classes, complexity. `python -m hack.lint.measures`.

The figures are for people who compare two commits; nothing fails here. Arguments are other checkouts.
Complexity is counted by radon. Lines of code are neither docstrings nor comments, and are not blank.
"""

from __future__ import annotations

import argparse
import ast
import io
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hack.lint.architecture import LAYERS
from hack.lint.words import BARE_WORDS, definitions

PRODUCT = tuple(LAYERS)
MAX_COMPLEXITY, MAX_FIELDS, MAX_METHODS = 12, 15, 12

_NO_CODE = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)


class Measure(NamedTuple):
    """One figure of the tree."""

    name: str
    value: int


def measures(root: Path) -> list[Measure]:
    """Return the figures of a checkout, each with its name, in the order of printing. root: of the checkout."""
    product = [path for package in PRODUCT for path in sorted((root / package).rglob("*.py"))]
    trees = {path: ast.parse(path.read_text()) for path in product}
    classes: dict[str, list[str]] = defaultdict(list)
    for path, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(path.relative_to(root).parts[0])
    return [
        Measure("product lines", _lines(product)),
        Measure("product lines of docstrings", sum(map(_docstring_lines, trees.values()))),
        Measure("product lines of code", sum(map(_code_lines, product))),
        Measure("product modules", len(product)),
        Measure("hack lines", _lines((root / "hack").rglob("*.py"))),
        Measure("tests lines", _lines((root / "tests").rglob("*.py"))),
        Measure("class names of more than one product class", sum(len(homes) > 1 for homes in classes.values())),
        Measure(
            "class names of more than one class of a package",
            sum(max(Counter(homes).values()) > 1 for homes in classes.values()),
        ),
        Measure("bare participles, adverbs and pronouns as names", sum(map(_bare_names, trees.values()))),
        Measure(f"functions of a complexity over {MAX_COMPLEXITY}", sum(map(_complex_functions, product))),
        Measure(
            f"classes of more than {MAX_FIELDS} fields or {MAX_METHODS} methods",
            sum(map(_large_classes, trees.values())),
        ),
    ]


def _lines(paths: Iterator[Path] | Sequence[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths if "__pycache__" not in path.parts)


def _docstring_lines(tree: ast.Module) -> int:
    """Count the lines of the docstrings of a module, its classes and its functions."""
    return sum(last - first + 1 for first, last in _docstrings(tree))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each docstring, both from 1."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = node.body[0] if node.body and ast.get_docstring(node, clean=False) is not None else None
            if text is not None:
                yield text.lineno, text.end_lineno or text.lineno


def _code_lines(path: Path) -> int:
    """Count the lines of a file that hold code."""
    source = path.read_text()
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for first, last in _docstrings(ast.parse(source)):
        code.difference_update(range(first, last + 1))
    return len(code)


def _bare_names(tree: ast.Module) -> int:
    """Count definitions whose name, without underscores at its ends, is one bare word."""
    return sum(name.strip("_") in BARE_WORDS for node in ast.walk(tree) for name in definitions(node))


def _complex_functions(path: Path) -> int:
    """Return the number of functions in a file with a cyclomatic complexity above MAX_COMPLEXITY."""
    from radon.complexity import cc_visit
    from radon.visitors import Class

    blocks = cc_visit(path.read_text())
    functions = [block for block in blocks if not isinstance(block, Class)]
    return sum(block.complexity > MAX_COMPLEXITY for block in functions)


def _large_classes(tree: ast.Module) -> int:
    return sum(_is_large(node) for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _is_large(node: ast.ClassDef) -> bool:
    fields = sum(isinstance(each, ast.AnnAssign) for each in node.body)
    methods = sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)
    return fields > MAX_FIELDS or methods > MAX_METHODS


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures of the named checkouts; of several also the ratio of the last to the first. Return 0.

    argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="python -m hack.lint.measures", description="Measure how readable a tree is.")
    parser.add_argument("root", nargs="*", type=Path, default=[Path()], help="checkouts; two are compared (default: .)")
    roots = parser.parse_args(argv).root
    tables = [measures(root) for root in roots]
    for row in zip(*tables, strict=True):
        values = "".join(f"{measure.value:>10,}" for measure in row)
        ratio = f"{row[-1].value / row[0].value:>8.2f}" if len(row) > 1 and row[0].value else ""
        print(f"{row[0].name:<55}{values}{ratio}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

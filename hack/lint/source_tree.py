"""The modules of a tree as the architecture's rules see them: names, syntax trees, who imports whom. ast only.

What is allowed is decided in architecture.py.
"""

from __future__ import annotations

import ast
import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path

PACKAGE = "turnout"  # the one import package: its rooms lie at the top of the tree
BY_NAME = ("import_module", "__import__")
BESIDE = ("hack", "tests")  # outside of it: they import anything; only tests import them


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name."""

    target: str  # as far as the text tells: `a.b.c` of `from turnout.a.b import c`
    line: int
    lazy: bool = False  # in a function
    bare: bool = False  # the text leaves the package out, and so means whatever module of that name comes first
    by_name: bool = False  # `import_module("a.b")`: no import statement


@dataclass(frozen=True)
class Module:
    """One Python file."""

    name: str  # dotted; that of the package for its `__init__`
    path: str  # from the tree's root, with slashes
    tree: ast.Module
    lines: int
    by_name: bool = True  # it may import by a call, too, which can stand in any expression

    @property
    def package(self) -> str:
        """The top folder, "" for a file beside the folders."""
        return self.path.split("/", 1)[0] if "/" in self.path else ""

    @property
    def is_init(self) -> bool:
        """True if it is a package's `__init__`."""
        return self.path.rsplit("/", 1)[-1] == "__init__.py"

    @cached_property
    def imports(self) -> tuple[Import, ...]:
        """Every import of the file, lazy ones and `import_module("...")` included, in the order of its lines."""
        return tuple(
            sorted(map(_parse_import, self._imports_below(self.tree, False)), key=attrgetter("line", "target"))
        )

    def _imports_below(self, node: ast.AST, lazy: bool) -> Iterator[Import]:
        """Yield the imports below a node. lazy: the node is inside a function."""
        for child in ast.iter_child_nodes(node):
            match child:
                case ast.Import():
                    yield from (Import(alias.name, child.lineno, lazy) for alias in child.names)
                case ast.ImportFrom():
                    origin = self._origin(child)
                    yield from (Import(f"{origin}.{alias.name}", child.lineno, lazy) for alias in child.names)
                case ast.Call() if (target := _named_at_run_time(child)) is not None:
                    yield Import(target, child.lineno, lazy, by_name=True)
            if self.by_name or not isinstance(child, ast.expr):
                inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from self._imports_below(child, lazy or inside)

    def _origin(self, node: ast.ImportFrom) -> str:
        """Return the full name of the module from which a statement imports; relative imports are resolved."""
        if not node.level:
            return node.module or ""
        folders = self.name.split(".") if self.is_init else self.name.split(".")[:-1]
        parents = [*(() if self.package in BESIDE else (PACKAGE,)), *folders[: len(folders) - (node.level - 1)]]
        return ".".join([*parents, node.module] if node.module else parents)


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree in the order of the text, without expressions, which are most of it."""
    waiting = [tree]
    while waiting:
        yield (node := waiting.pop())
        waiting += reversed([child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)])


def definitions(tree: ast.Module | ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    """Yield the functions and classes of a module, including those in classes, but not those in functions.

    tree: a module or a class.
    """
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from definitions(node)


def _parse_import(found: Import) -> Import:
    inside = found.target.startswith(f"{PACKAGE}.")
    return replace(found, target=found.target.removeprefix(f"{PACKAGE}."), bare=not inside)


def _named_at_run_time(call: ast.Call) -> str | None:
    """Return the module's name in `import_module("a.b")` or `__import__("a.b")`; None for any other call."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name not in BY_NAME or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def read(root: Path, packages: Sequence[str]) -> tuple[Module, ...]:
    """Return the parsed .py files of these folders of `root`, folder by folder, sorted by path.

    A missing folder has no files. Raises SyntaxError for a file that is no valid Python.
    """
    files = [file for package in packages for file in sorted((root / package).rglob("*.py"))]
    collects = gc.isenabled()
    gc.disable()  # trees are kept: the collector would look through those of a thousand files again and again
    try:
        return tuple(_module(root, file) for file in files if "__pycache__" not in file.parts)
    finally:
        if collects:
            gc.enable()


def _module(root: Path, file: Path) -> Module:
    """Return one parsed file."""
    path = file.relative_to(root)
    parts = path.with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = file.read_text()
    by_name = any(each in text for each in BY_NAME)
    return Module(name, path.as_posix(), ast.parse(text, str(path)), len(text.splitlines()), by_name)

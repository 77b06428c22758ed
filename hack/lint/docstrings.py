"""Check that docstrings explain only arguments and fields that exist: `python -m hack.lint.docstrings`.

A docstring explains an argument by a sentence that begins with its name: `limit: items per page, 0 for all.` If the
argument is renamed and the sentence is not, readers look for an argument that nobody can pass. Such a name must be an
argument of the function or of a function around it, or a field, attribute or argument of the class. It may also be an
element of the result that the docstring has named in brackets before. An argument without an explanation is not
reported.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hack.lint.architecture import LAYERS

ROOT = Path(__file__).resolve().parents[2]
_Function = ast.FunctionDef | ast.AsyncFunctionDef

# One or more names at the begin of a sentence, then a colon.
_EXPLAINED = re.compile(r"(?:^|(?<=[.)] ))([a-z_]\w*(?:(?:, | and )[a-z_]\w*)*): (?=\S)", re.MULTILINE)
_BRACKETED = re.compile(r"\(([^()]*)\)")  # such as the elements of a tuple: "Return (pods, hosts)."
_WRAPPED = re.compile(r"(?<!\n)\n(?!\n)\s*")  # the end of a line within a paragraph


@dataclass(frozen=True, slots=True)
class UnknownArgument:
    """A name that a docstring explains, and that nothing has."""

    path: str
    line: int  # of the function or class
    owner: str  # the function or class
    name: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: the docstring of {self.owner} explains {self.name!r}, which does not exist"


def unknown_arguments(path: str, tree: ast.Module) -> Iterator[UnknownArgument]:
    """Yield the names that the docstrings of a module explain, and that are no argument, field or attribute."""
    yield from _unknown_below(path, tree, frozenset())


def _unknown_below(path: str, node: ast.AST, around: frozenset[str]) -> Iterator[UnknownArgument]:
    """Yield the unknown arguments in the docstrings of the definitions below a node.

    path: of the module. around: the arguments of the functions around the node.
    """
    for child in ast.iter_child_nodes(node):
        inside = around
        if isinstance(child, _Function):
            inside = around | _arguments(child)
            yield from _check(path, child, inside | _inner_arguments(child))
        elif isinstance(child, ast.ClassDef):
            inside = frozenset()
            yield from _check(path, child, _names_of_class(child))
        yield from _unknown_below(path, child, inside)


def _check(path: str, owner: _Function | ast.ClassDef, known: Collection[str]) -> Iterator[UnknownArgument]:
    """Yield the explained names of one docstring that are not known. `name` also explains an attribute `_name`.

    owner: that has the docstring. known: names that it may explain.
    """
    text = _WRAPPED.sub(" ", ast.get_docstring(owner) or "")
    for match in _EXPLAINED.finditer(text):
        elements = {word for group in _BRACKETED.findall(text[: match.start()]) for word in re.findall(r"\w+", group)}
        for name in re.split(", | and ", match[1]):
            if name not in elements and name not in known and f"_{name}" not in known:
                yield UnknownArgument(path, owner.lineno, owner.name, name)


def _arguments(function: _Function) -> frozenset[str]:
    args = function.args
    single = [each for each in (args.vararg, args.kwarg) if each is not None]
    return frozenset(each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs, *single))


def _inner_arguments(function: _Function) -> frozenset[str]:
    """Return the arguments of the functions inside: a docstring may explain the function that is returned."""
    inner = (node for node in ast.walk(function) if isinstance(node, _Function))
    return frozenset(name for each in inner for name in _arguments(each))


def _names_of_class(owner: ast.ClassDef) -> frozenset[str]:
    """Return the fields, attributes and methods of a class, and the arguments of its methods."""
    names: set[str] = set()
    for node in ast.walk(owner):
        match node:
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names |= {each.id for each in targets if isinstance(each, ast.Name)}
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                names.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                names |= {node.name, *_arguments(node)}
    return frozenset(names)


def main(root: Path = ROOT) -> int:
    """Print every unknown argument that a docstring of the product or of hack explains. Return 1 if there is one, else
    0.

    root: of the repository.
    """
    unknown = [
        each
        for package in (*LAYERS, "hack")
        for path in sorted((root / package).rglob("*.py"))
        if "__pycache__" not in path.parts
        for each in unknown_arguments(path.relative_to(root).as_posix(), ast.parse(path.read_text()))
    ]
    print("".join(f"{each}\n" for each in unknown), end="", file=sys.stderr)
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())

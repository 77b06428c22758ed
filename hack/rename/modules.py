"""Move the modules of map.txt, and rewrite who imports or cites them. `python -m hack.rename.modules PACKAGE...`

Imports are rewritten by their syntax trees; a module that is used under its own name takes its new name in the file,
but where that name is taken already: there it keeps the old one by `as`, and the place is printed, for a person.
Dotted names and paths in strings, comments and papers are rewritten as text. `tests/PACKAGE/test_OLD.py` moves along.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).absolute().parents[2]
PACKAGE = "turnout"
TEXTS = (".py", ".md", ".yaml", ".yml", ".toml", ".cfg", ".txt", ".in", ".sh", ".json", ".rules", "")
LEFT_OUT = (
    "hack/rename/",
    "tests/launcher/saving/golden/",
    "docs/contract.md",
    "hack/locks/",
    "tests/crds/",
    "deploy/crds",
)


def listed(packages: list[str]) -> dict[str, str]:
    """Read the map for these packages: each module that exists, old dotted name to new."""
    exact: dict[str, str] = {}
    folders: dict[str, str] = {}
    for line in (ROOT / "hack/rename/map.txt").read_text().splitlines():
        if "->" not in line or line.startswith("#"):
            continue
        old, new = (part.strip() for part in line.split("->"))
        if old.split(".")[0] in packages:
            (folders if old.endswith(".*") else exact)[old.removesuffix(".*")] = new.removesuffix(".*")
    found = {}
    for file in tracked(*packages):
        if not file.endswith(".py") or file.endswith("__init__.py"):
            continue
        name = file.removesuffix(".py").replace("/", ".")
        folder, _, last = name.rpartition(".")
        if name in exact:
            found[name] = exact[name]
        elif folder in folders:
            found[name] = f"{folders[folder]}.{last}"
    for old in exact:
        if old not in found:
            print(f"no module {old}")
    return {old: new for old, new in found.items() if old != new}


def tracked(*under: str) -> list[str]:
    """List the files that git knows, from the root."""
    out = subprocess.run(["git", "ls-files", *under], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return out.split()


@dataclass
class Edit:
    """One replacement of a file: from (line, column) to (line, column), both as ast has them, in bytes."""

    begin: tuple[int, int]
    end: tuple[int, int]
    text: str


class Rewriting:
    """The rewriting of one Python file."""

    def __init__(self, path: str, text: str, moved: dict[str, str]) -> None:
        self.path, self.text, self.moved = path, text, moved
        self.tree = ast.parse(text)
        self.edits: list[Edit] = []

    def run(self) -> str:
        self._scope(self.tree, {})
        lines = self.text.splitlines(keepends=True)
        coded = [line.encode() for line in lines]
        for edit in sorted(self.edits, key=lambda e: e.begin, reverse=True):
            (l1, c1), (l2, c2) = edit.begin, edit.end
            head, tail = coded[l1 - 1][:c1], coded[l2 - 1][c2:]
            coded[l1 - 1 : l2] = [head + edit.text.encode() + tail]
        return b"".join(coded).decode()

    def _scope(self, scope: Any, outer: dict[str, str]) -> None:
        """Rewrite the imports of one scope, then the names in it that they bind, then the scopes inside."""
        names = dict(outer)
        bound = set(bindings(scope))
        for name in bound:
            names.pop(name, None)
        imports = list(own(scope, (ast.ImportFrom, ast.Import)))
        used = every_name(self.tree)
        for node in imports:
            names.update(self._import(node, used))
        for node in own(scope, (ast.Name,)):
            if node.id in names and names[node.id] != node.id:
                self._put(node, names[node.id])
        for inner in scopes(scope):
            for part in outside_parts(inner):
                for node in (n for n in ast.walk(part) if isinstance(n, ast.Name)):
                    if node.id in names and names[node.id] != node.id:
                        self._put(node, names[node.id])
            self._scope(inner, names)

    def _put(self, node: Any, text: str) -> None:
        edit = Edit((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), text)
        if not any(edit.begin == e.begin for e in self.edits):
            self.edits.append(edit)

    def _import(self, node: Any, used: set[str]) -> dict[str, str]:
        renamed: dict[str, str] = {}
        if isinstance(node, ast.Import):
            if any(a.name.removeprefix(f"{PACKAGE}.") in self.moved for a in node.names):
                parts = []
                for a in node.names:
                    new = self._new(a.name)
                    parts.append(new + (f" as {a.asname}" if a.asname else ""))
                self._put(node, "import " + ", ".join(parts))
            return renamed
        base = node.module or ""
        if node.level or base.split(".")[0] not in (PACKAGE, "hack", "tests"):
            return renamed
        groups: dict[str, list[str]] = defaultdict(list)
        changed = False
        for a in node.names:
            full = f"{base}.{a.name}".removeprefix(f"{PACKAGE}.")
            if full in self.moved:  # a module
                new_base, _, new_name = whole(self.moved[full]).rpartition(".")
                changed = True
                if a.asname:
                    groups[new_base].append(f"{new_name} as {a.asname}" if a.asname != new_name else new_name)
                elif new_name == a.name:
                    groups[new_base].append(new_name)
                elif new_name in used:
                    print(f"{self.path}:{node.lineno}: {a.name} stays, {new_name} is taken")
                    groups[new_base].append(f"{new_name} as {a.name}")
                else:
                    groups[new_base].append(new_name)
                    renamed[a.name] = new_name
            else:
                new_base = self._new(base)
                changed |= new_base != base
                groups[new_base].append(a.name + (f" as {a.asname}" if a.asname else ""))
        if changed:
            indent = " " * node.col_offset
            text = f"\n{indent}".join(f"from {b} import {', '.join(ns)}" for b, ns in groups.items())
            self._put(node, text)
        return renamed

    def _new(self, dotted: str) -> str:
        bare = dotted.removeprefix(f"{PACKAGE}.")
        if bare in self.moved:
            return whole(self.moved[bare])
        if bare in FOLDERS:
            return whole(FOLDERS[bare])
        return dotted


FOLDERS: dict[str, str] = {}


def whole(name: str) -> str:
    """Give the name as an import has it."""
    return name if name.split(".")[0] in ("hack", "tests") else f"{PACKAGE}.{name}"


def every_name(tree: ast.AST) -> set[str]:
    """Give every name that a file binds or reads, but attributes."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.alias(name=name, asname=asname):
                found.add(asname or name.split(".")[0])
            case ast.ExceptHandler(name=name) if name:
                found.add(name)
            case ast.MatchAs(name=name) | ast.MatchStar(name=name) if name:
                found.add(name)
    return found


FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
SCOPES = (*FUNCTIONS, ast.ClassDef, *COMPREHENSIONS)


def parts_inside(scope: ast.AST) -> list[ast.AST]:
    """Give what runs inside a scope, without what is evaluated outside of it (decorators, defaults, bases)."""
    match scope:
        case ast.Lambda():
            return [scope.body]
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return list(scope.body)
        case ast.ClassDef():
            return list(scope.body)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
            return list(ast.iter_child_nodes(scope))
    return list(ast.iter_child_nodes(scope))


def outside_parts(scope: ast.AST) -> list[ast.AST]:
    inside = set(map(id, parts_inside(scope)))
    return [child for child in ast.iter_child_nodes(scope) if id(child) not in inside]


def own(scope: ast.AST, kinds: tuple[type, ...]) -> Iterator[Any]:
    """Walk one scope without the scopes inside it."""
    todo = list(parts_inside(scope))
    while todo:
        node = todo.pop()
        if isinstance(node, kinds):
            yield node
        if not isinstance(node, SCOPES):
            todo.extend(ast.iter_child_nodes(node))


def scopes(scope: ast.AST) -> Iterator[ast.AST]:
    yield from own(scope, SCOPES)


def bindings(scope: Any) -> Iterator[str]:
    """Give the names that a scope binds itself, imports aside."""
    if isinstance(scope, FUNCTIONS):
        args = scope.args
        for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg):
            if arg is not None:
                yield arg.arg
    if isinstance(scope, ast.Module):
        return
    for node in own(scope, (ast.Name, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, *FUNCTIONS[:2], ast.ClassDef)):
        match node:
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Name():
                pass
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                if name:
                    yield name
            case _ if not isinstance(scope, ast.ClassDef):
                yield node.name


def as_text(text: str, moved: dict[str, str]) -> str:
    """Rewrite dotted names and paths of moved modules in any text."""
    for table in (moved, FOLDERS):
        for old, new in sorted(table.items(), key=lambda pair: -len(pair[0])):
            if "." not in old:
                continue
            path_old, path_new = re.escape(old.replace(".", "/")), new.replace(".", "/")
            ending = r"(?=\.py\b|/__main__|::)" if table is moved else r"(?=/|`|\b(?!\.py|\w))"
            text = re.sub(rf"(?<![\w./-])(turnout/)?{path_old}{ending}", rf"\g<1>{path_new}", text)
            text = re.sub(rf"(?<![\w./-])(turnout\.)?{re.escape(old)}(?![\w/-])", rf"\g<1>{new}", text)
    return text


def folders_of(moved: dict[str, str]) -> dict[str, str]:
    """Say where each folder went whose modules all went to one."""
    went = defaultdict(set)
    for old, new in moved.items():
        went[old.rpartition(".")[0]].add(new.rpartition(".")[0])
    return {old: next(iter(new)) for old, new in went.items() if len(new) == 1 and "." in old and {old} != new}


def main(packages: list[str]) -> None:
    """Move and rewrite all of these packages."""
    moved = listed(packages)
    FOLDERS.update(folders_of(moved))
    rewritten = 0
    for file in tracked():
        path = ROOT / file
        if file.startswith(LEFT_OUT) or not file.endswith(TEXTS) or path.is_symlink() or not path.is_file():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        new = Rewriting(file, text, moved).run() if file.endswith(".py") else text
        new = as_text(new, moved)
        if new != text:
            path.write_text(new)
            rewritten += 1
    for old, new in moved.items():
        move(f"{old.replace('.', '/')}.py", f"{new.replace('.', '/')}.py")
    for old, new in FOLDERS.items():
        above, below = (name.replace(".", "/") for name in (old, new))
        if (ROOT / above / "__init__.py").exists() and not (ROOT / below / "__init__.py").exists():
            move(f"{above}/__init__.py", f"{below}/__init__.py")
    print(f"{len(moved)} modules moved, {rewritten} files rewritten")


def move(source: str, target: str) -> None:
    """Move one tracked file."""
    (ROOT / target).parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "mv", source, target], cwd=ROOT, check=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""Rename classes and constants by identifiers.txt, where they are defined and in all that import them.

`python -m hack.rename.identifiers`. In strings and comments only a name in backticks or a quoted type is rewritten.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize

from hack.rename.modules import ROOT, every_name, tracked, whole


def main() -> None:
    """Rename all that is listed, and print where a new name is taken already."""
    table = [line.split() for line in (ROOT / "hack/rename/identifiers.txt").read_text().splitlines()]
    rows = [(whole(row[0]), row[1], row[2]) for row in table if len(row) == 3 and not row[0].startswith("#")]
    for file in tracked("*.py"):
        path = ROOT / file
        if file.startswith("hack/rename/") or path.is_symlink() or not path.is_file():
            continue
        text = path.read_text()
        names = renames(file, ast.parse(text), rows)
        if names:
            path.write_text(rewritten(text, names))


def renames(file: str, tree: ast.Module, rows: list[tuple[str, str, str]]) -> dict[str, str]:
    """Give the names of one file that change, and what they become."""
    own = whole(file.removesuffix(".py").replace("/", "."))
    found = {old: new for module, old, new in rows if module == own}
    of = {(module, old): new for module, old, new in rows}
    modules = {module for module, _, _ in rows}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (new := of.get((node.module or "", alias.name))) is not None:
                    found[alias.name] = new
                if f"{node.module}.{alias.name}" in modules:
                    local = alias.asname or alias.name
                    inner = {o: n for m, o, n in rows if m == f"{node.module}.{alias.name}"}
                    found |= {f"{local}.{old}": f"{local}.{new}" for old, new in inner.items()}
    taken = every_name(tree)
    for old, new in found.items():
        if "." not in old and new in taken and old in taken:
            print(f"{file}: {old} becomes {new}, which is taken")
    return found


def rewritten(text: str, names: dict[str, str]) -> str:
    """Rewrite names in code, and in backticks elsewhere."""
    plain = {old: new for old, new in names.items() if "." not in old}
    dotted = {tuple(old.split(".")): new.split(".")[1] for old, new in names.items() if "." in old}
    lines = text.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    edits = []
    for at, token in enumerate(tokens):
        before = [each.string for each in tokens[max(at - 2, 0) : at]]
        if token.type == tokenize.NAME:
            if before[-1:] == ["."]:
                new = dotted.get((before[0], token.string)) if len(before) == 2 else None
            else:
                new = plain.get(token.string)
            if new is not None:
                edits.append((token.start, token.end, new))
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            new = token.string
            for old, name in plain.items():
                new = re.sub(rf"`{old}(?=[`.(])", f"`{name}", new)
                new = re.sub(rf"^([\"']){old}\1$", rf"\1{name}\1", new) if old[0].isupper() and old != "Word" else new
            if new != token.string:
                edits.append((token.start, token.end, new))
    for (row, begin), (last, end), new in reversed(edits):
        lines[row - 1 : last] = [lines[row - 1][:begin] + new + lines[last - 1][end:]]
    return "".join(lines)


if __name__ == "__main__":
    main()

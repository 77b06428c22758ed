"""Makes mutants of a source: one comparison, sign, `and`, constant or assignment is another. The engine is mutmut's.

Words of messages and arguments left out are no mutants here: tests are not asked to repeat the texts.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst
from mutmut.mutation.file_mutation import create_mutations, deep_replace

_OPERATIONS = (cst.BinaryOperation, cst.BooleanOperation, cst.ComparisonTarget, cst.UnaryOperation, cst.AugAssign)
_MUTATED = (*_OPERATIONS, cst.BaseNumber, cst.Break, cst.Continue, cst.IfExp)


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module with one fault. was, became: the changed lines, without their indent."""

    path: str
    line: int
    was: str
    became: str
    source: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.was}  ->  {self.became}"


def mutants(path: str, source: str) -> Iterator[Mutant]:
    """Make all mutants of one module, in the order of its lines."""
    module, mutations, _, _ = create_mutations(path, source)
    for mutation in mutations:
        if mutation.contained_by_top_level_function is None or not _counts(mutation.original_node):
            continue
        changed = deep_replace(module, mutation.original_node, mutation.mutated_node)
        if isinstance(changed, cst.Module) and changed.code != source:
            yield _mutant(path, source, changed.code)


def _counts(node: cst.CSTNode) -> bool:
    return isinstance(node, _MUTATED) or (isinstance(node, cst.Name) and node.value in ("True", "False"))


def _mutant(path: str, source: str, changed: str) -> Mutant:
    before, after = source.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    _, begin, end, began, ended = next(block for block in matcher.get_opcodes() if block[0] != "equal")
    was, became = (" ".join(line.strip() for line in lines) for lines in (before[begin:end], after[began:ended]))
    return Mutant(path, begin + 1, was, became, changed)

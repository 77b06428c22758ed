"""Makes mutants of a source: one comparison, sign, `and`, constant or assignment is another. The engine is mutmut's.

Words of messages and arguments left out are no mutants here: tests are not asked to repeat the texts.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import libcst as cst
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

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
    statement: range  # the lines of what is run if the fault is, none of its body

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.was}  ->  {self.became}"


def mutants(path: str, source: str) -> list[Callable[[], Mutant]]:
    """List what makes each mutant of one module, in the order of its lines: making one takes a while."""
    module, mutations, _, _ = create_mutations(path, source)
    statements = _statements(source)
    return [
        partial(_mutant, path, source, statements, module, mutation)
        for mutation in mutations
        if mutation.contained_by_top_level_function is not None
        and _counts(mutation.original_node)
        and not mutation.original_node.deep_equals(mutation.mutated_node)
    ]


def is_only_checked(mutant: Mutant) -> bool:
    """True if the mutant lets zip() end with the shortest: what is checked there holds, so nothing else comes of it."""
    return mutant.was.replace("strict=True", "strict=False") == mutant.became


def _counts(node: cst.CSTNode) -> bool:
    return isinstance(node, _MUTATED) or (isinstance(node, cst.Name) and node.value in ("True", "False"))


def _mutant(path: str, source: str, statements: Sequence[range], module: cst.Module, mutation: Mutation) -> Mutant:
    new = deep_replace(module, mutation.original_node, mutation.mutated_node)
    changed = cst.ensure_type(new, cst.Module).code
    before, after = source.splitlines(), changed.splitlines()
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    _, begin, end, began, ended = next(block for block in matcher.get_opcodes() if block[0] != "equal")
    was, became = (" ".join(line.strip() for line in lines) for lines in (before[begin:end], after[began:ended]))
    lines = range(begin + 1, max(begin + 1, end) + 1)
    around = min((each for each in statements if lines[0] in each), key=len, default=lines)
    return Mutant(path, lines[0], was, became, changed, around)


def _statements(source: str) -> list[range]:
    """List the lines of each statement: of one with a body, those before it."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None) or getattr(node, "cases", None)
            end = node.end_lineno or node.lineno
            if body:
                first = body[0] if isinstance(body[0], ast.stmt) else body[0].pattern
                end = max(node.lineno, first.lineno - 1)
            found.append(range(node.lineno, end + 1))
    return found

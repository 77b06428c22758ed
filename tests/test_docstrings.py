"""The check that docstrings explain arguments and fields that exist."""

import ast
from textwrap import dedent

import pytest

from hack.lint.docstrings import main, unknown_arguments


def names(text):
    return [each.name for each in unknown_arguments("cli/a.py", ast.parse(dedent(text)))]


@pytest.mark.slow  # `make check` runs it
def test_this_checkout_explains_only_arguments_that_exist():
    assert main() == 0


@pytest.mark.parametrize(("text", "unknown"), [
    pytest.param('def f(limit):\n "Do. limit: items, at most. what: the kind."', ["what"], id="an old argument"),
    pytest.param('def f(a):\n """Do.\n\n a: one. b: two.\n """', ["b"], id="in a paragraph of its own"),
    pytest.param('def f(a):\n "Do. a, b and c: numbers."', ["b", "c"], id="several names at once"),
    pytest.param('class A:\n "A thing. slow: its nodes."\n fast: int', ["slow"], id="an old field"),
    pytest.param('def f():\n def g(a):\n  "Do. b: one."', ["b"], id="a function in a function"),
])  # fmt: skip
def test_a_name_that_nothing_has_is_reported(text, unknown):
    assert names(text) == unknown


@pytest.mark.parametrize("text", [
    pytest.param('def f(a, *b, c=1, **d):\n "Do. a, b: x. c: y. d: z."', id="every kind of argument"),
    pytest.param('def f(a):\n def g():\n  "Do. a: of the function around."', id="an argument of the function around"),
    pytest.param('def f():\n "Return a function. a: its argument."\n def g(a): ...', id="of the returned function"),
    pytest.param('class A:\n "A thing. size: of it."\n def __init__(self):\n  self._size = 1', id="an attribute"),
    pytest.param('class A:\n "A thing. a, b: texts."\n a = b = ""', id="attributes of the class itself"),
    pytest.param('class A:\n "A thing. a: of f."\n def f(self, a): ...', id="an argument of a method"),
    pytest.param('def f():\n """Do it once\n more: or twice."""', id="a colon after the first word of a wrapped line"),
    pytest.param('def f():\n "Return (pods, hosts). hosts: their names."', id="an element of the result"),
    pytest.param('def f():\n "Two words: no argument. It says `a: b`, and so: on."', id="a colon within a sentence"),
    pytest.param("def f(): ...", id="no docstring"),
])  # fmt: skip
def test_other_text_is_no_fault(text):
    assert names(text) == []


def test_the_report_names_the_place():
    (unknown,) = unknown_arguments("cli/a.py", ast.parse('\ndef f():\n "Do. a: one."'))
    assert str(unknown) == "cli/a.py:2: the docstring of f explains 'a', which does not exist"

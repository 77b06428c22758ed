"""Names that a training script may import from `turnout`, and their signatures, as a file has them."""

import inspect
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import turnout

KEPT = Path(__file__).with_name("public_names.txt")


def described(name):
    """One line for a name and one for each public method of it."""
    found = getattr(turnout, name)
    if inspect.isclass(found) and issubclass(found, Enum):
        yield f"{name}: {', '.join(found.__members__)}"
        return
    yield f"{name}{_signature(found)}"
    for member, value in sorted(vars(found).items()) if inspect.isclass(found) else ():
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)):
            yield f"{name}.{member}{_signature(getattr(found, member))}"


def _signature(found):
    try:
        return str(inspect.signature(found))
    except ValueError:
        return ""


def test_names_and_signatures_are_those_that_users_know():
    """A change here is a change for users: it stands in the changelog."""
    today = "".join(f"{line}\n" for name in sorted(turnout.__all__) for line in described(name))
    assert today == KEPT.read_text()


def test_each_name_is_listed_and_another_one_is_told_as_python_tells_it():
    assert set(turnout.__all__) <= set(dir(turnout))
    with pytest.raises(AttributeError, match="module 'turnout' has no attribute 'Checkpoints'"):
        turnout.Checkpoints  # noqa: B018  that it is asked for is the test


@pytest.mark.parametrize(("names", "brings"), [
    pytest.param("", False, id="the package alone"),
    pytest.param("ElasticBatch, ElasticSampler, Steps, scaled", False, id="data, rates and steps"),
    pytest.param("Checkpointer", True, id="a checkpointer"),
])  # fmt: skip
def test_torch_comes_with_the_first_name_that_needs_it(names, brings):
    line = f"from turnout import {names}" if names else "import turnout"
    code = f"import sys; {line}; print('torch' in sys.modules, 'kubernetes' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == f"{brings} False\n"

"""A traceback names paths that git knows: `git blame` works on them."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from turnout.topology.map_formats import read_text

ROOT = Path(__file__).parents[1]


def test_git_blames_the_lines_of_a_traceback():
    with pytest.raises(AttributeError) as error:
        read_text(None)
    paths = [Path(frame.filename) for frame in traceback.extract_tb(error.tb)]
    assert ROOT / "topology" / "map_formats.py" in paths
    for path in paths:
        subprocess.run(["git", "blame", "-s", "-L1,1", path], cwd=ROOT, check=True, capture_output=True)


@pytest.mark.parametrize("package", sorted(path.name for path in (ROOT / "turnout").iterdir() if path.is_symlink()))
def test_a_package_is_loaded_from_its_folder(package):
    code = f"import turnout.{package} as package; print(package.__file__)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert Path(loaded.strip()) == ROOT / package / "__init__.py"

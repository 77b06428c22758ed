"""Resolve hack/locks/*.txt afresh from setup.cfg: `python -m hack.codegen.lock`. Needs uv on PATH or in this Python.

Every wheel is named by its hash and none by its address, so that any index may serve it.

- dev.txt: what `make setup` installs.
- demo.txt: the part of dev.txt that `make demo` installs without a setup.
- controllers.txt: the part of dev.txt that the controllers' image runs on.
- launcher-image.txt: what the launcher's image brings along, without torch, which the training image has.
- launcher.txt: torch and what it needs, added by `make setup-launcher`. It repeats what dev.txt has of that.
- pythons.txt: runs the tests without torch on Python 3.11 and newer alike.
- adapters.txt: launcher.txt and the trainers of other projects.
- launcher-floor.txt: the oldest versions that setup.cfg lets a trainer have, and what runs the tests, for an
  environment of its own (minimum_versions.py).
- colossalai.txt: the ColossalAI runner with what its command line imports and the environment lacks.
- preprocess.txt: the tokenizers of `turnout preprocess` in the versions of adapters.txt, and what its tests compare
  with.
- spark.txt: pyspark, which comes as source alone.
- uv.txt: the installer that the Makefile runs.
- docs.txt: the generator of the docs site.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

LOCKS = Path("hack/locks")
FORM = ["--generate-hashes", "--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"]


def main(argv: Sequence[str] | None = None) -> int:
    """Resolve and write all lock files with uv. Return 0.

    --keep: only add and drop packages. Versions in dev.txt apply to the others too. anchors-nvrx.txt is for another
    Python, and is maintained by hand. argv: None for that of this process.
    """
    parser = argparse.ArgumentParser(prog="lock", description="Resolve hack/locks/*.txt from setup.cfg.")
    parser.add_argument("--keep", action="store_true", help="add and drop packages, but keep every version")
    upgrade = [] if parser.parse_args(argv).keep else ["--upgrade"]
    uv = [found] if (found := shutil.which("uv")) else [sys.executable, "-m", "uv"]
    dev = LOCKS / "dev.txt"
    extras = ["--extra", "cli", "--extra", "dev", "--extra", "completion"]
    _compile(uv, ["setup.cfg", str(LOCKS / "tools.in"), *extras, *upgrade], dev)
    _compile(uv, ["setup.cfg", "--extra", "controllers", "--constraint", str(dev)], LOCKS / "controllers.txt")
    demo = ["setup.cfg", str(LOCKS / "tools.in"), "--extra", "cli", "--constraint", str(dev)]
    _compile(uv, demo, LOCKS / "demo.txt")
    others = ["setup.cfg", str(LOCKS / "pythons.in"), "--extra", "cli", "--extra", "completion", "--universal"]
    _compile(uv, [*others, "--constraint", str(dev)], LOCKS / "pythons.txt")
    _compile(uv, ["setup.cfg", "--extra", "launcher", "--constraint", str(dev), *upgrade], LOCKS / "launcher.txt")
    launcher = str(LOCKS / "launcher.txt")
    image = ["setup.cfg", str(LOCKS / "launcher-image.in"), "--extra", "kubernetes", "--constraint", str(dev)]
    _compile(uv, [*image, "--constraint", launcher], LOCKS / "launcher-image.txt")
    both = ["--extra", "launcher", "--extra", "adapters", "--constraint", str(dev), "--constraint", launcher]
    _compile(uv, ["setup.cfg", *both, *upgrade], LOCKS / "adapters.txt")
    tested = ["--constraint", str(dev), "--constraint", str(LOCKS / "adapters.txt")]
    preprocess = ["setup.cfg", str(LOCKS / "preprocess.in"), "--extra", "preprocess"]
    _compile(uv, [*preprocess, *tested, *upgrade], LOCKS / "preprocess.txt")
    _compile(uv, ["setup.cfg", "--extra", "spark", *tested, *upgrade], LOCKS / "spark.txt")
    extras = ["--extra", "launcher", "--extra", "cli"]
    oldest = ["setup.cfg", str(LOCKS / "floor.in"), *extras, "--resolution", "lowest-direct"]
    _compile(uv, [*oldest, *upgrade], LOCKS / "launcher-floor.txt")
    for name in ("anchors", "colossalai"):
        _compile(uv, [str(LOCKS / f"{name}.in"), "--no-deps", *upgrade], LOCKS / f"{name}.txt")
    for name in ("advisories", "docs", "uv"):
        _compile(uv, [str(LOCKS / f"{name}.in"), *upgrade], LOCKS / f"{name}.txt")
    return 0


def _compile(uv: Sequence[str], arguments: Sequence[str], into: Path) -> None:
    command = [*uv, "pip", "compile", "--quiet", "--python-version", "3.11", *FORM, *arguments, "-o", str(into)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())

"""Build the docs site into build/docs: `python -m hack.docs GENERATOR`, as `make docs` runs it.

GENERATOR is the path of zensical, which lives in an environment of its own. The build fails on a link or an anchor that
leads nowhere, and on a part that a browser would load from another host.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hack.docs.stage import foreign_resources, place, stage, with_local_search_worker, with_site_paths

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "build" / "docs-source"
SITE = ROOT / "build" / "docs"


def main(argv: Sequence[str] | None = None) -> int:
    """Build the site: lay out the pages, run the generator, and check that the pages load nothing from other hosts.

    Returns 0, the generator's exit code if it fails, 1 if a page loads from another host. argv: None for that of this
    process.
    """
    parser = argparse.ArgumentParser(prog="docs", description="Build the docs site into build/docs.")
    parser.add_argument("generator", help="the path of zensical")
    args = parser.parse_args(argv)
    lay_out(SOURCE)
    shutil.rmtree(SITE, ignore_errors=True)
    command = [
        str(Path(args.generator).resolve()),
        "build",
        "--clean",
        "--strict",
        "--config-file",
        str(SOURCE / "zensical.toml"),
    ]
    if code := subprocess.run(command, cwd=SOURCE, check=False).returncode:
        return code
    shutil.move(SOURCE / "site", SITE)
    pages = sorted(SITE.rglob("*.html"))
    for page in pages:
        page.write_text(with_local_search_worker(page.relative_to(SITE).as_posix(), page.read_text()))
    loads = [
        f"{page.relative_to(ROOT)}: {each}"
        for page in (*pages, *SITE.rglob("*.css"))
        for each in foreign_resources(page.read_text())
    ]
    print("\n".join(loads) if loads else f"{len(pages)} pages: {SITE.relative_to(ROOT) / 'index.html'}")
    return 1 if loads else 0


def lay_out(folder: Path) -> None:
    """Write the site's configuration and pages, with the files that they link to, into a folder that is emptied
    first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    files = repository_files()
    linked = {each for each in files if each.startswith("docs/") and not each.endswith(".md")}
    for path in (each for each in files if each.endswith(".md")):
        staged = stage(path, (ROOT / path).read_text(), files)
        linked.update(staged.files)
        _with_parents(folder / "pages" / place(path)).write_text(staged.text)
    for path in linked:
        shutil.copyfile(ROOT / path, _with_parents(folder / "pages" / place(path)))
    (folder / "zensical.toml").write_text(with_site_paths((ROOT / "hack/docs/zensical.toml").read_text()))
    for name in ("site.css", "iframe-worker.js"):
        shutil.copyfile(ROOT / "hack/docs" / name, folder / "pages" / name)


def repository_files() -> frozenset[str]:
    """Return every file that git tracks or does not ignore, as paths from the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return frozenset(path for path in listed if (ROOT / path).is_file())


def _with_parents(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


if __name__ == "__main__":
    sys.exit(main())

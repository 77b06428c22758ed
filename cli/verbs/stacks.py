"""The verb `turnout stacks --path DIR`: the stack files of a hang, merged into pictures, text and JSON."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from turnout.cli.exit_codes import ExitCode
from turnout.cli.verb_support.cluster_flags import Verbs, add_verb

if TYPE_CHECKING:
    from turnout.launcher.health.stack_traces.stack_tree import WorldStacks

_NAME = re.compile(r"(\d{5})-(\d{5})\.stacktrace")


def add(commands: Verbs) -> None:
    """Add the verb `stacks` to the command line."""
    stacks = add_verb(
        commands,
        "stacks",
        "merge the stacks of all ranks, and name who stands apart; exit 1 when there are none",
        (("stacks --path /shared/stacks", "the folder that the ranks of a hung job wrote to"),),
    )
    stacks.add_argument(
        "--path", "-p", type=Path, default=Path(), help="folder of RANK-WORLD.stacktrace files (%(default)s)"
    )
    stacks.set_defaults(run=_stacks)


def _stacks(args: argparse.Namespace) -> int:
    """Merge the stacks of a hang, write the report into their folder and print the verdict.

    Returns the exit code: FAILED if there are no usable stacks or the report cannot be written.
    """
    from turnout.launcher.errors import BadStacks
    from turnout.launcher.health.hang_monitor.stack_capture import StackFolder
    from turnout.launcher.health.stack_traces.report import files, merge, verdict

    try:
        merged = merge(_read_stacks(args.path))
        documents = files(merged)
        StackFolder(str(args.path)).write(documents)
    except (BadStacks, OSError) as error:
        print(f"turnout stacks: {error}", file=sys.stderr)
        return ExitCode.FAILED
    print("\n".join(verdict(merged)))
    print(f"written to {args.path}: {', '.join(documents)}")
    return 0


def _read_stacks(folder: Path) -> WorldStacks:
    """Return the stacks of all stack files of the folder.

    The rank of a file that cannot be read counts as silent, and the result says why. Raises BadStacks if there is no
    stack file, if the files are of worlds of different sizes, or if a file's name has an impossible rank or world.
    Raises OSError if the folder cannot be listed.
    """
    from turnout.launcher.errors import BadStacks
    from turnout.launcher.health.stack_traces.parse import MAX_BYTES, read
    from turnout.launcher.health.stack_traces.stack_tree import MAX_RANKS, RankStacks, WorldStacks

    names = sorted(name for name in os.listdir(folder) if _NAME.fullmatch(name))
    if not names:
        raise BadStacks(f"no RANK-WORLD.stacktrace file, as 00003-00008.stacktrace, is in {folder}")
    worlds = {int(name[6:11]) for name in names}
    if len(worlds) > 1:
        sizes = " and ".join(map(str, sorted(worlds)))
        raise BadStacks(f"{folder} has stack files of worlds of {sizes} ranks: delete the files of all worlds but one")
    (world,) = worlds
    if not 0 < world <= MAX_RANKS or int(names[-1][:5]) >= world:
        raise BadStacks(f"{names[-1]}: there is no such rank or world")
    stacks_by_rank, why = dict[int, RankStacks](), dict[int, str]()
    for name in names:
        rank = int(name[:5])
        try:
            with (folder / name).open("rb") as file:
                raw = file.read(MAX_BYTES + 1)
            stacks_by_rank[rank] = read(raw)
        except (BadStacks, OSError) as error:
            why[rank] = str(error)
    return WorldStacks(world, stacks_by_rank, why)

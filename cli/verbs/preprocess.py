"""`turnout preprocess`: text becomes Megatron's indexed datasets; `turnout preprocess check PREFIX` verifies one."""

from __future__ import annotations

import argparse

from turnout.cli.verb_support.cluster_flags import Verbs, add_verb
from turnout.preprocess import command


def add(commands: Verbs) -> None:
    """Add the verb `preprocess` to the command line."""
    parser = add_verb(
        commands,
        "preprocess",
        "turn text into Megatron's indexed datasets, or check one; exit 1 when it fails",
        (
            (
                "preprocess --input 'corpus/*.jsonl.zst' --output-prefix data/corpus --tokenizer-type HFTokenizer"
                " --vocab-file tokenizer.json --append-eod --workers 8",
                "on this machine",
            ),
            ("preprocess check data/corpus_text_document", "sizes, offsets, counts and the last document"),
        ),
        "If a run was stopped, the same command continues it from its finished shards.",
        allow_abbrev=False,
    )
    command.add_arguments(parser)
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    return command.run(args, "turnout preprocess")

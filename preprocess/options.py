"""The options of a run of preprocessing: those of the source guide's script, and our own.

Names and defaults of the first ones are those of the script. Source: DL-69…79
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from enum import Enum

from turnout.preprocess.errors import BadOption


class TokenizerType(Enum):
    """The tokenizers that the guide names. Source: DL-72"""

    HF_GPT2 = "HFGPT2Tokenizer"
    HF = "HFTokenizer"
    GPT2_BPE = "GPT2BPETokenizer"
    CHAR_LEVEL = "CharLevelTokenizer"
    TIKTOKEN = "TiktokenTokenizer"


class Engine(Enum):
    """The library that tokenizes."""

    AUTO = "auto"  # gigatoken if it can read the vocabulary and gives equal tokens on a sample of the input
    GIGATOKEN = "gigatoken"  # the library of this name
    REFERENCE = "reference"  # Hugging Face tokenizers, or tiktoken for its own vocabularies


class OnError(Enum):
    """The policy for a document that has a fault."""

    STOP = "stop"  # the run ends with an error that names file and line; finished shards stay
    SKIP = "skip"  # the document is left out, counted and listed
    QUARANTINE = "quarantine"  # as skip, and its raw line is kept beside the output, where the line is available


MIB = 1 << 20  # bytes
MAX_WORKERS = 1024  # processes
MAX_PARTITIONS = 1_000_000  # of Spark


def _check_bounds(*options: tuple[str, int, int, int]) -> None:
    """Raise BadOption for the first option that is out of its bounds. options: name, value, minimum and maximum."""
    for name, value, minimum, maximum in options:
        if not minimum <= value <= maximum:
            raise BadOption(f"--{name} is {value}, must be from {minimum} to {maximum}")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The kind of a tokenizer and the files of its vocabulary."""

    kind: TokenizerType
    vocab_file: str | None = None  # the file or folder of the vocabulary; None for a tokenizer without one
    merge_file: str | None = None  # the merges.txt of a vocab.json, None without one
    tiktoken_pattern: str | None = None  # name of the split rule of a tiktoken vocabulary; None: by the file's name


@dataclass(frozen=True, slots=True)
class InputLimits:
    """The sizes at which the input is cut into shards, and above which it is refused."""

    chunk_bytes: int = 16 * MIB  # input of one shard, >= 1
    max_document_bytes: int = 1024 * MIB  # raw bytes of one document, >= 1
    max_expansion: int = 200  # decompressed bytes for each compressed byte of an archive, >= 1

    def __post_init__(self) -> None:
        _check_bounds(
            ("chunk-bytes", self.chunk_bytes, 1, 1 << 40),
            ("max-document-bytes", self.max_document_bytes, 1, 1 << 40),
            ("max-expansion", self.max_expansion, 1, 1 << 40),
        )


@dataclass(frozen=True, slots=True)
class WorkShare:
    """The share of the chunks that one process makes."""

    index: int = 0  # 0 <= index < count
    count: int = 1  # processes that share the work and the storage, >= 1

    def __post_init__(self) -> None:
        _check_bounds(("indexes", self.count, 1, 1 << 20), ("index", self.index, 0, self.count - 1))


@dataclass(frozen=True, slots=True)
class Options:
    """One run, as its command line describes it."""

    inputs: tuple[str, ...]  # paths, globs or fsspec URLs, in the order of the output
    output_prefix: str  # a path or an fsspec URL
    tokenizer: TokenizerFiles
    keys: tuple[str, ...] = ("text",)  # fields that are read, one dataset each
    append_eod: bool = False  # end each document with the end-of-document token
    ftfy: bool = False  # repair texts with ftfy first
    dataset_impl: str = "mmap"  # the format of the output; only mmap is written
    workers: int = 1  # processes, 1 to MAX_WORKERS
    num_docs: int | None = None  # documents that the user expects, for the progress only, >= 1
    log_interval: int = 100  # documents between two lines of progress, >= 1
    engine: Engine = Engine.AUTO  # the library that tokenizes
    on_error: OnError = OnError.STOP  # the policy for faulty documents
    limits: InputLimits = InputLimits()
    share: WorkShare = WorkShare()
    partitions: int = 200  # of Spark, 1 to MAX_PARTITIONS

    def __post_init__(self) -> None:
        _check_bounds(
            ("workers", self.workers, 1, MAX_WORKERS),
            ("log-interval", self.log_interval, 1, 1 << 40),
            ("num-docs", 1 if self.num_docs is None else self.num_docs, 1, 1 << 60),
            ("partitions", self.partitions, 1, MAX_PARTITIONS),
        )
        if not self.inputs or not all(self.inputs):
            raise BadOption("--input is empty, or has an empty name between commas")
        if not self.output_prefix:
            raise BadOption("--output-prefix is empty")
        if len(set(self.keys)) != len(self.keys) or not all(_is_file_name(key) for key in self.keys):
            raise BadOption(
                f"--jsonl-keys {' '.join(self.keys)!r}: each key must occur only once and be usable in a file name"
            )
        if self.dataset_impl != "mmap":
            raise BadOption(
                f"--dataset-impl {self.dataset_impl}: this format (magic TNTIDX) is older than Megatron-LM's readers of"
                " today and is not written; use --dataset-impl mmap"
            )


def _is_file_name(key: str) -> bool:
    """Return True if a key can be a part of a file name."""
    return 0 < len(key) <= 100 and "/" not in key and "\\" not in key and key.isprintable() and key not in (".", "..")


def add_arguments(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add the options of a run to a parser.

    required: False if the parser has a command that does not need --input, --tokenizer-type and --output-prefix; then
    read_options() checks them.
    """
    _add_guide_arguments(parser, required)
    _add_own_arguments(parser)


def _add_guide_arguments(parser: argparse.ArgumentParser, required: bool) -> None:
    """Add the options of the source guide's script to a parser.

    required: True if --input, --tokenizer-type and --output-prefix must be given.
    """
    group = parser.add_argument_group("input data")
    group.add_argument(
        "--input",
        required=required,
        metavar="FILES",
        help="files separated by commas: .jsonl, .jsonl.gz, .jsonl.zst, lm_dataformat archives; globs and URLs too",
    )
    group.add_argument(
        "--jsonl-keys", nargs="+", default=["text"], metavar="KEY", help="fields to read (default: text)"
    )
    group.add_argument("--num-docs", type=int, metavar="N", help="documents in the input, for the progress")
    group = parser.add_argument_group("tokenizer")
    group.add_argument(
        "--tokenizer-type",
        required=required,
        choices=[kind.value for kind in TokenizerType],
        help="kind of vocabulary; none is downloaded",
    )
    group.add_argument(
        "--vocab-file", "--vocab", metavar="FILE", help="tokenizer.json, vocab.json, a folder, or .tiktoken"
    )
    group.add_argument("--merge-file", metavar="FILE", help="merges.txt, beside a vocab.json")
    group.add_argument("--append-eod", action="store_true", help="end each document with the end-of-document token")
    group.add_argument("--ftfy", action="store_true", help="repair the text with ftfy before it is tokenized")
    group = parser.add_argument_group("output data")
    group.add_argument("--output-prefix", required=required, metavar="PREFIX", help="path of the output without suffix")
    group.add_argument(
        "--dataset-impl", default="mmap", choices=["lazy", "cached", "mmap"], help="only mmap is written"
    )
    group = parser.add_argument_group("runtime")
    group.add_argument("--workers", type=int, default=1, metavar="N", help="processes (default: 1)")
    group.add_argument(
        "--log-interval", type=int, default=100, metavar="N", help="documents between lines of progress (default: 100)"
    )


def _add_own_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that the source guide's script does not have. parser: the parser that receives them."""
    default = Options(("-",), "-", TokenizerFiles(TokenizerType.HF))
    group = parser.add_argument_group("further options")
    group.add_argument(
        "--engine",
        default=default.engine.value,
        choices=[engine.value for engine in Engine],
        help="auto: gigatoken if its tokens equal the reference's on 1,000 documents of the input (default: auto)",
    )
    group.add_argument(
        "--on-error",
        default=default.on_error.value,
        choices=[policy.value for policy in OnError],
        help="what happens to a faulty document; quarantine keeps its raw line beside the output (default: stop)",
    )
    group.add_argument(
        "--tiktoken-pattern", metavar="NAME", help="split rule of a .tiktoken file: gpt2, cl100k or o200k"
    )
    for name, value, text in (
        ("chunk-bytes", default.limits.chunk_bytes, "input of one shard"),
        ("max-document-bytes", default.limits.max_document_bytes, "raw bytes of one document"),
        ("max-expansion", default.limits.max_expansion, "decompressed bytes for each byte of an archive"),
        ("index", default.share.index, "which share of the work this process does, with --indexes"),
        (
            "indexes",
            default.share.count,
            "processes that share the work on one storage, such as the pods of an Indexed Job",
        ),
        ("partitions", default.partitions, "partitions of the work under Spark"),
    ):
        group.add_argument(f"--{name}", type=int, default=value, metavar="N", help=f"{text} (default: {value})")


def read_options(arguments: argparse.Namespace) -> Options:
    """Return the options of a run. arguments: of a parser that add_arguments() has filled.

    Raises BadOption for a missing option or a value that is out of bounds.
    """
    for name in ("input", "tokenizer_type", "output_prefix"):
        if getattr(arguments, name) is None:
            raise BadOption(f"--{name.replace('_', '-')} is required")
    return Options(
        inputs=tuple(part.strip() for part in arguments.input.split(",")),
        output_prefix=arguments.output_prefix,
        tokenizer=TokenizerFiles(
            TokenizerType(arguments.tokenizer_type),
            arguments.vocab_file,
            arguments.merge_file,
            arguments.tiktoken_pattern,
        ),
        keys=tuple(arguments.jsonl_keys),
        append_eod=arguments.append_eod,
        ftfy=arguments.ftfy,
        dataset_impl=arguments.dataset_impl,
        workers=arguments.workers,
        num_docs=arguments.num_docs,
        log_interval=arguments.log_interval,
        engine=Engine(arguments.engine),
        on_error=OnError(arguments.on_error),
        limits=InputLimits(arguments.chunk_bytes, arguments.max_document_bytes, arguments.max_expansion),
        share=WorkShare(arguments.index, arguments.indexes),
        partitions=arguments.partitions,
    )

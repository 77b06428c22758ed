"""Shared by the tests of preprocessing: small vocabularies, files, and the ten lines that ours must equal."""

from __future__ import annotations

import gzip
import json
import random
import tarfile
import zipfile
from collections.abc import Sequence
from functools import cache
from io import BytesIO
from pathlib import Path

import numpy as np

from turnout.preprocess.merge import dataset_path
from turnout.preprocess.options import InputLimits, Options, TokenizerFiles, TokenizerType
from turnout.preprocess.run import Totals, merge_if_complete, prepare_run
from turnout.preprocess.shards import make_shard

VOCABULARY = "tokenizer.json"
WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "training",
    "Größe",
    "naïve",
    "北京",
    "🙂",
    "don't",
    "12345",
    "x=1;",
    "end.\n",
]


@cache
def tokenizer_json() -> str:
    """A byte-level BPE that knows the words above, 338 ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(200, seed=7), trainer)
    return tokenizer.to_str()


def texts(count: int, seed: int = 0) -> list[str]:
    """Random texts, most of them short and a few long."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=int(chance.lognormvariate(3, 1)) + 1)) for _ in range(count)]


def lines(documents: Sequence[str], key: str = "text") -> bytes:
    """The documents as lines of JSON, every second one in ASCII."""
    return b"".join(
        json.dumps({"id": number, key: text}, ensure_ascii=bool(number % 2)).encode() + b"\n"
        for number, text in enumerate(documents)
    )


def gz(content: bytes) -> bytes:
    return gzip.compress(content, 1, mtime=0)


def zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=1).compress(content)


def tar(members: Sequence[tuple[str, bytes]]) -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return buffer.getvalue()


def zipped(members: Sequence[tuple[str, bytes]]) -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


def dat(documents: Sequence[str]) -> bytes:
    """lm_dataformat's DatArchive."""
    return zst(b"".join(b"%016d" % len(text.encode()) + text.encode() for text in documents))


def options(folder: Path, *inputs: str, chunk_bytes: int = 2000, **changes: object) -> Options:
    """The options of a run in a folder, whose inputs are named without it."""
    vocabulary = folder / VOCABULARY
    if not vocabulary.exists():
        vocabulary.write_text(tokenizer_json())
    paths = tuple(name if "://" in name else str(folder / name) for name in inputs)
    values: dict[str, object] = {
        "tokenizer": TokenizerFiles(TokenizerType.HF, str(vocabulary)),
        "append_eod": True,
        "limits": InputLimits(chunk_bytes),
        "output_prefix": str(folder / "out"),
    }
    return Options(inputs=paths, **(values | changes))


def run(of: Options) -> Totals | None:
    """Make a dataset in this process, one chunk after the other: a runner as thin as can be."""
    with prepare_run(of) as prepared_run:
        if isinstance(prepared_run, Totals):
            return prepared_run
        return merge_if_complete(
            prepared_run, [make_shard(prepared_run.settings, chunk) for chunk in prepared_run.pending]
        )


def ten_lines(documents: Sequence[str], encode, eod: int | None, dtype: str) -> tuple[bytes, bytes]:
    """Write `.bin` and `.idx` as a single process does that keeps everything in memory."""
    ids = [encode(text) for text in documents]
    ids = [[*tokens, *([] if eod is None else [eod])] for tokens in ids if len(tokens)]
    lengths = np.array([len(tokens) for tokens in ids], "<i4")
    content = np.array([token for tokens in ids for token in tokens], dtype)
    ends = np.cumsum(lengths, dtype="<i8") * content.itemsize
    starts = np.concatenate([np.zeros(1, "<i8"), ends])[: len(ids)]
    code = {"<u2": 8, "<i4": 4}[dtype]
    head = b"MMIDIDX\x00\x00" + np.array([1], "<u8").tobytes() + bytes([code])
    head += np.array([len(ids), len(ids) + 1], "<u8").tobytes()
    return content.tobytes(), head + lengths.tobytes() + starts.tobytes() + np.arange(
        len(ids) + 1, dtype="<i8"
    ).tobytes()


def reference(documents: Sequence[str], *, eod: bool = True) -> tuple[bytes, bytes]:
    """The dataset that a run with the vocabulary above has to give."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json())
    return ten_lines(documents, lambda text: tokenizer.encode(text).ids, 0 if eod else None, "<u2")


def output(of: Options, key: str = "text") -> tuple[bytes, bytes]:
    """The files that a run left for a key."""
    return tuple(Path(dataset_path(of.output_prefix, key, suffix)).read_bytes() for suffix in ("bin", "idx"))

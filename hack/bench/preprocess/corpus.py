"""Make the files that a run reads: generated text, the same text as one long document, and a tokenizer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from hack.bench.preprocess import text

END_OF_DOCUMENT = "<|endoftext|>"
VOCABULARY = 32_000
_SAMPLE_BYTES, _SAMPLE_STEP = 64_000_000, 4  # every fourth document of so many bytes
_LONG_BLOCK = 1_000_000  # where the text of the long document begins: no other file holds that text


@dataclass(frozen=True, slots=True)
class Corpus:
    """A folder with generated files."""

    folder: Path
    processes: int = 2

    def lines(self, size_bytes: int, first_block: int = 0) -> Path:
        """Return a file of about `size_bytes` bytes in documents of about 8 kB. Make the file unless it exists.

        first_block: number of its first block; other numbers give other text.
        """
        path = self.folder / f"text-{size_bytes}-{first_block}.jsonl"
        if not path.exists():
            text.write(path, size_bytes, self.processes, first_block)
        return path

    def halves(self, path: Path) -> tuple[Path, Path]:
        """Write the first and the second half of the file `path`, by bytes and in whole lines, into two files beside
        it.

        Returns their paths in this order. Existing files are replaced. Raises ValueError if no line ends in the second
        half.
        """
        content = path.read_bytes()
        middle = content.index(b"\n", len(content) // 2) + 1
        parts = path.with_suffix(".first.jsonl"), path.with_suffix(".second.jsonl")
        parts[0].write_bytes(content[:middle])
        parts[1].write_bytes(content[middle:])
        return parts

    def short_documents(self) -> tuple[Path, Path]:
        """Return two files with one short document each: a run over them takes the time of starting and ending."""
        paths = self.folder / "one.jsonl", self.folder / "two.jsonl"
        for path in paths:
            path.write_text(json.dumps({"text": "One short document."}) + "\n")
        return paths

    def long_document(self, long_bytes: int, small_bytes: int) -> tuple[Path, Path]:
        """Return two files of the same text: one long document between small documents, and small documents only.

        Documents of `small_bytes` in total are in both files, half of them before the long document. long_bytes: of the
        long document.
        """
        joined, small = self.folder / "long.jsonl", self.folder / "small.jsonl"
        lines = _lines_from(_LONG_BLOCK)
        with joined.open("wb") as out, small.open("wb") as other:
            for line in _until(lines, small_bytes // 2):
                out.write(line)
                other.write(line)
            out.write(b'{"text":"')
            for line in _until(lines, long_bytes):
                out.write(text.text_within(line))
                other.write(line)
            out.write(b'"}\n')
            for line in _until(lines, small_bytes // 2):
                out.write(line)
                other.write(line)
        return joined, small

    def tokenizer(self) -> Path:
        """Return the folder of a byte-level BPE of 32,000 tokens as Hugging Face keeps it. Train it on a sample unless
        it exists.
        """
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        folder = self.folder / "tokenizer"
        if (folder / "tokenizer_config.json").exists():
            return folder
        folder.mkdir(exist_ok=True)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=VOCABULARY,
            special_tokens=[END_OF_DOCUMENT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        sample = (json.loads(line)["text"] for line in list(_until(_lines_from(0), _SAMPLE_BYTES))[::_SAMPLE_STEP])
        tokenizer.train_from_iterator(sample, trainer)
        tokenizer.save(str(folder / "tokenizer.json"))
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END_OF_DOCUMENT}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings) + "\n")
        return folder


def _lines_from(first_block: int) -> Iterator[bytes]:
    for block in count(first_block):
        yield from text.block_of_lines(block).splitlines(keepends=True)


def _until(lines: Iterator[bytes], size_bytes: int) -> Iterator[bytes]:
    """Yield lines until they have `size_bytes` bytes together. The line that reaches the size is the last one.

    Raises RuntimeError if `lines` has too few.
    """
    total_bytes = 0
    while total_bytes < size_bytes:
        line = next(lines)
        total_bytes += len(line)
        yield line

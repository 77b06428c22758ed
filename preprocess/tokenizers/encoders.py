"""Encoders, which turn texts into token ids. They add no special tokens of a template, like Megatron's tokenizers.

If a text contains the name of a special token, Hugging Face vocabularies make it one token; for tiktoken it is ordinary
text.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turnout.preprocess.errors import BadOption
from turnout.preprocess.options import Engine
from turnout.preprocess.tokenizers.load import tiktoken_ranks
from turnout.preprocess.tokenizers.settings import (
    GIGATOKEN_PATTERNS,
    TIKTOKEN_PATTERNS,
    EncoderSettings,
    Vocabulary,
    cut_text,
    is_splittable,
)

BATCH_CHARACTERS = 1 << 20  # that a reference library encodes at once; it uses about 150 bytes for each token
# Characters that a gigatoken tokenizer encodes before it may be rebuilt, which takes 50 ms and empties its cache.
MIN_CACHED_CHARACTERS = 32 << 20
_THREADS = "TOKENIZERS_PARALLELISM"  # the variable that Hugging Face tokenizers reads before each batch
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

Ids = NDArray[np.uint32]


class Encoder(Protocol):
    """A tokenizer."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text, an empty array for a text without tokens."""
        ...


@lru_cache(maxsize=2)
def get_encoder(settings: EncoderSettings) -> Encoder:
    """Return the encoder for these settings.

    The two encoders that were used last are kept in this process, and equal settings get the same encoder. Raises
    BadOption if the library refuses the vocabulary, ModuleNotFoundError if the library is not installed.
    """
    if settings.vocabulary is Vocabulary.UTF8_BYTES:
        return _Utf8Bytes()
    if settings.engine is Engine.GIGATOKEN:
        return _Gigatoken(settings)
    if settings.vocabulary is Vocabulary.TIKTOKEN:
        return _Tiktoken(settings)
    return _HuggingFace(settings)


@contextmanager
def tokenizer_threads() -> Iterator[None]:
    """Let Hugging Face tokenizers use threads in this process while the block runs (TOKENIZERS_PARALLELISM).

    No effect on tiktoken. Use it before the workers start, because they inherit the variable.
    """
    before = os.environ.get(_THREADS)
    os.environ[_THREADS] = "true"
    try:
        yield
    finally:
        del os.environ[_THREADS]
        if before is not None:
            os.environ[_THREADS] = before


class _Utf8Bytes:
    """An encoder for which each byte of UTF-8 is a token."""

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the bytes of each text as token ids."""
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint32) for text in texts]


class _Gigatoken:
    """Gigatoken on the calling thread. A call for each text is faster than its batches, which build awkward arrays.

    Its cache keeps every word and has no bound, so a tokenizer with a large cache is replaced by a new one.
    """

    def __init__(self, settings: EncoderSettings) -> None:
        """Build the tokenizer. Raises BadOption."""
        self._settings = settings
        self._encode = self._build()
        self._start_bytes, self._characters = _resident_bytes(), 0

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text. A tokenizer whose cache has grown beyond its limit is replaced first.

        Raises BadOption if the replacement cannot be built, and any error of the library, which may be a BaseException
        (a panic of its Rust code).
        """
        taken_bytes = _resident_bytes() - self._start_bytes
        if taken_bytes > self._settings.cache_bytes and self._characters > MIN_CACHED_CHARACTERS:
            del self._encode  # frees its memory before the next tokenizer allocates some
            self._encode, self._characters = self._build(), 0
        self._characters += sum(map(len, texts))
        encode = self._encode
        return [encode(text) for text in texts]

    def _build(self) -> Callable[[str], Ids]:
        """Create a tokenizer with an empty cache and return its encode function.

        Raises BadOption if gigatoken cannot read the vocabulary.
        """
        try:
            encode: Callable[[str], Ids] = _gigatoken_backend(self._settings).encode
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a panic of its Rust code derives from BaseException
            raise BadOption(f"gigatoken cannot read this vocabulary: {error}; use --engine reference") from error
        return encode


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 on a system without /proc."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * PAGE_BYTES
    except OSError:
        return 0


def _gigatoken_backend(settings: EncoderSettings) -> Any:
    """Return gigatoken's tokenizer for the vocabulary in the settings. Raises any error of the library."""
    import gigatoken

    if settings.vocabulary is Vocabulary.TOKENIZER_JSON:
        return gigatoken.Tokenizer.from_json(settings.content).backend
    assert settings.pattern is not None
    with tempfile.NamedTemporaryFile(suffix=".tiktoken") as file:
        file.write(settings.content)
        file.flush()
        return gigatoken.Tokenizer.from_tiktoken(
            file.name, pretokenizer=GIGATOKEN_PATTERNS[settings.pattern], special_tokens={}
        ).backend


class _HuggingFace:
    """The tokenizers library of Hugging Face."""

    def __init__(self, settings: EncoderSettings) -> None:
        """Build the tokenizer without truncation and padding. Raises BadOption if the library refuses it."""
        os.environ.setdefault(_THREADS, "false")  # a worker is one process of several
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_buffer(settings.content)
        except Exception as error:  # the library raises Exception itself
            raise BadOption(f"Hugging Face tokenizers cannot read this vocabulary: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._may_cut = is_splittable(settings)

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text. A very long text is cut into parts if the vocabulary allows it."""
        result = []
        for batch in batches(texts):
            if self._may_cut and len(batch) == 1 and len(batch[0]) > BATCH_CHARACTERS:
                parts = cut_text(batch[0], BATCH_CHARACTERS)
                result.append(np.concatenate([ids for part in parts for ids in self._encode_batch([part])]))
            else:
                result += self._encode_batch(batch)
        return result

    def _encode_batch(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text."""
        encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(encoding.ids, dtype=np.uint32) for encoding in encodings]


class _Tiktoken:
    """The tiktoken library."""

    def __init__(self, settings: EncoderSettings) -> None:
        """Build the tokenizer. Raises BadOption if the vocabulary is malformed, or if the library refuses it."""
        import tiktoken

        assert settings.pattern is not None
        assert settings.eod is not None
        ranks = tiktoken_ranks("the vocabulary", settings.content)
        try:
            self._encoding = tiktoken.Encoding(
                "vocabulary",
                pat_str=TIKTOKEN_PATTERNS[settings.pattern],
                mergeable_ranks=ranks,
                special_tokens={str(settings.eod_text): settings.eod},
            )
        except Exception as error:  # such as an OverflowError for a rank of more than 32 bits
            raise BadOption(f"tiktoken cannot read this vocabulary: {error}") from error

    def encode(self, texts: Sequence[str]) -> list[Ids]:
        """Return the token ids of each text, as uint32 arrays. A long text is cut into parts first."""
        result = []
        for text in texts:
            parts = [
                self._encoding.encode_to_numpy(part, disallowed_special=()) for part in cut_text(text, BATCH_CHARACTERS)
            ]
            result.append(np.concatenate(parts).astype(np.uint32, copy=False))
        return result


def batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the texts in consecutive batches; the texts of a batch have at most BATCH_CHARACTERS together.

    A longer text is a batch of its own, so that it can be cut.
    """
    start = size = 0
    for position, text in enumerate(texts):
        if position > start and size + len(text) > BATCH_CHARACTERS:
            yield texts[start:position]
            start, size = position, 0
        size += len(text)
    if start < len(texts):
        yield texts[start:]

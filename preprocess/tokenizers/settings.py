"""A tokenizer as plain bytes, so that a worker on any machine can build it without the vocabulary's files."""

from __future__ import annotations

import json
import re
from enum import Enum
from typing import Any

import msgspec

from turnout.preprocess.options import Engine


class Vocabulary(Enum):
    """The format of a vocabulary's bytes."""

    TOKENIZER_JSON = "tokenizer.json"  # as Hugging Face tokenizers writes it
    TIKTOKEN = "tiktoken"  # a token in base64 and its rank in each line
    UTF8_BYTES = "utf8_bytes"  # no file: a byte is a token


class EncoderSettings(msgspec.Struct, frozen=True):
    """Everything that determines the tokens of a text, and the library that computes them."""

    vocabulary: Vocabulary  # the format of `content`
    content: bytes  # the content of the vocabulary's file; empty for UTF8_BYTES
    vocabulary_size: int  # one more than the highest token id, >= 1
    engine: Engine = Engine.REFERENCE  # never AUTO
    eod: int | None = None  # the end-of-document token; None if the vocabulary has none
    pattern: str | None = None  # name of the split rule of a tiktoken vocabulary
    eod_text: str | None = None  # the name of the end-of-document token; None without a name
    cache_bytes: int = 192 << 20  # bytes that the cache of words may use in a process, >= 0


# Split rules of byte-level vocabularies by the name that options and gigatoken use, in tiktoken's notation.
# Source: tiktoken 0.14 `tiktoken_ext/openai_public.py`
TIKTOKEN_PATTERNS = {
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s"
    ),
    "o200k": "|".join(
        [
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        ]
    ),
}
# Gigatoken's names of the same rules.
GIGATOKEN_PATTERNS = {"gpt2": "gpt2", "cl100k": "gpt4", "o200k": "o200k"}
# Split rules of tokenizer.json files by which a word after a blank always begins a new token.
# Source: Llama 3 (and GPT-4), Qwen 2 `tokenizer.json`
_WORD_RULES = frozenset(
    [
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
        + digits
        + r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ]
) | {TIKTOKEN_PATTERNS["o200k"]}
_CUT = re.compile(r"[A-Za-z] [A-Za-z]")


def is_splittable(settings: EncoderSettings) -> bool:
    """Return True if a text may be cut before a blank between two ASCII letters without a change of its tokens.

    At such a place a split rule ends one word and begins the next. A tokenizer.json is splittable only if its split
    rule is one of this module, and it has no normalizer and no special token that contains such a place.
    """
    if settings.vocabulary is not Vocabulary.TOKENIZER_JSON:
        return True  # the three patterns above, and bytes
    config = json.loads(settings.content)
    if config.get("normalizer") is not None or (config.get("model") or {}).get("dropout"):
        return False
    for token in config.get("added_tokens") or ():
        if token.get("lstrip") or token.get("rstrip") or token.get("single_word") or _CUT.search(token["content"]):
            return False
    return _begins_words(config.get("pre_tokenizer"))


def _begins_words(rule: Any) -> bool:
    """Return True if a pre-tokenizer always begins a new token at a word after a blank; False if this is not known.

    rule: the JSON value of `pre_tokenizer` in a file that the tokenizers library has accepted.
    """
    if not isinstance(rule, dict) or rule.get("add_prefix_space"):
        return False
    match rule.get("type"):
        case "ByteLevel":
            return bool(rule.get("use_regex", True))
        case "Sequence":
            first, *rest = rule.get("pretokenizers") or [None]
            return _splits_words(first) and all(
                part.get("type") == "ByteLevel" and not part.get("add_prefix_space") and not part.get("use_regex", True)
                for part in rest
            )
        case _:
            return False


def _splits_words(part: Any) -> bool:
    """Return True if a part of a pre-tokenizer is one of the rules that split a text at words.

    part: of a pre-tokenizer that the tokenizers library has accepted.
    """
    return (
        isinstance(part, dict)
        and part.get("type") == "Split"
        and part.get("pattern", {}).get("Regex") in _WORD_RULES
        and part.get("behavior") == "Isolated"
        and not part.get("invert")
    )


def cut_text(text: str, piece_characters: int) -> list[str]:
    """Return the text in consecutive pieces of at least `piece_characters`, cut before blanks between two letters.

    Only the last piece may be shorter. The vocabulary must be splittable. A text without such a place is one piece.
    """
    pieces, start = [], 0
    while len(text) - start > piece_characters:
        cut = _CUT.search(text, start + piece_characters)
        if cut is None:
            break
        pieces.append(text[start : cut.start() + 1])
        start = cut.start() + 1
    pieces.append(text[start:] if start else text)
    return pieces

"""Choose the engine: gigatoken if it returns the same tokens as the reference library, else the reference.

Tokens are compared on documents of the input, and on texts in which tokenizers differ most often.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from turnout.preprocess.errors import BadOption
from turnout.preprocess.options import Engine
from turnout.preprocess.tokenizers.encoders import Encoder, Ids, get_encoder, tokenizer_threads
from turnout.preprocess.tokenizers.settings import EncoderSettings, Vocabulary

SAMPLE_DOCUMENTS = 1000  # documents of the input that are compared
SAMPLE_CHARACTERS = 2048  # of each document, from its beginning
# Texts in which tokenizers differ most often.
HARD_TEXTS = (
    "",
    " ",
    "\n",
    "\x00a\x00",
    "a  b   c \t\n\n  d \r\n e ",
    " leading and trailing ",
    "don't DON'T we'll I'M l'été",
    "12345 1,234.56 0x7f ²³ ٣٤٥",
    "naïve café ﬁ Å Å é é",
    "北京大学的训练 日本語テキスト 한국어 русский العربية हिन्दी ไทย",
    "🙂👩‍👩‍👧‍👦🇩🇪 a‍b​c\ufeffd�",
    "def f(x):\n    return {'a': [x**2, \"b\"]}\n\t# ...\n",
    "a" * 300 + " " * 300 + "." * 300,
)


class EngineChoice(NamedTuple):
    """The library that tokenizes, and the reason for it."""

    engine: Engine  # not AUTO
    reason: str  # a phrase for the log and the run's record


def choose_engine(settings: EncoderSettings, texts: Sequence[str]) -> EngineChoice:
    """Return the engine for these settings: gigatoken only if it gives the reference library's tokens for all texts
    that are compared.

    These are HARD_TEXTS, texts with the special tokens, and the first SAMPLE_CHARACTERS of each of `texts`, a sample of
    the documents. A vocabulary of plain bytes always gets the reference, and so does one that gigatoken cannot read. If
    gigatoken is not installed, the reference is the result. Raises BadOption if the reference library refuses the
    vocabulary, and ModuleNotFoundError if the reference library is not installed.
    """
    if settings.vocabulary is Vocabulary.UTF8_BYTES:
        return EngineChoice(Engine.REFERENCE, "bytes need no library")
    reference = get_encoder(msgspec.structs.replace(settings, engine=Engine.REFERENCE))
    try:
        candidate = get_encoder(msgspec.structs.replace(settings, engine=Engine.GIGATOKEN))
    except (BadOption, ModuleNotFoundError) as error:
        return EngineChoice(Engine.REFERENCE, str(error))
    probes = [*HARD_TEXTS, *_special_texts(settings), *(text[:SAMPLE_CHARACTERS] for text in texts)]
    with tokenizer_threads():
        wanted_ids = reference.encode(probes)
    for text, expected_ids, ids in zip(probes, wanted_ids, _encode_each(candidate, probes), strict=True):
        if ids is None or not np.array_equal(expected_ids, ids):
            return EngineChoice(Engine.REFERENCE, f"gigatoken gives other tokens for {text[:60]!r}")
    return EngineChoice(Engine.GIGATOKEN, f"tokens are equal on {len(texts)} documents of the input")


def _encode_each(candidate: Encoder, probes: Sequence[str]) -> list[Ids | None]:
    """Return the token ids of each text, None for a text at which the encoder fails.

    Each text is encoded by itself, so that a panic of the encoder affects this text only.
    """
    result: list[Ids | None] = []
    for text in probes:
        try:
            result.append(candidate.encode([text])[0])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic of Rust code derives from BaseException
            result.append(None)
    return result


def _special_texts(settings: EncoderSettings) -> list[str]:
    """Return two texts for each added token of a tokenizer.json: between words, and between blanks.

    [] for other vocabularies.
    """
    if settings.vocabulary is not Vocabulary.TOKENIZER_JSON:
        return []
    added = msgspec.json.decode(settings.content).get("added_tokens") or []
    return [text for token in added for text in (f"a{token['content']}b", f"a {token['content']} b")]

"""Read a vocabulary's files into EncoderSettings. Source: DL-72, DL-73; gpt-neox ea7aefd8 `megatron/tokenizer`"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
from collections.abc import Callable
from typing import Any

from turnout.preprocess.errors import BadOption
from turnout.preprocess.options import TokenizerFiles, TokenizerType
from turnout.preprocess.tokenizers.settings import TIKTOKEN_PATTERNS, EncoderSettings, Vocabulary

END_OF_TEXT = "<|endoftext|>"
# Names of end-of-document tokens. The first one that the vocabulary has is used.
END_NAMES = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>")
# gpt-neox's CharLevelTokenizer: 512 ids, of which 0 ends a document.
CHAR_LEVEL_SIZE, CHAR_LEVEL_EOD = 512, 0
# For published tiktoken vocabularies by their number of ranks: (id of the end of text, size with special tokens).
_PUBLISHED_RANKS = {100256: (100257, 100277), 199998: (199999, 200019)}

ReadBytes = Callable[[str], bytes]  # returns the content of a file


def load_tokenizer(files: TokenizerFiles, read: ReadBytes, is_folder: Callable[[str], bool]) -> EncoderSettings:
    """Return the tokenizer of these files, with their content as bytes, for the reference engine.

    read: returns the content of a file; raises OSError or BadOption, for a missing file FileNotFoundError (a folder of
    HFGPT2Tokenizer without tokenizer.json is then read by vocab.json and merges.txt). is_folder: returns True if a path
    is a folder. Raises BadOption if an option is missing, or if a file is missing or wrong; the message names it.
    Raises ModuleNotFoundError if Hugging Face tokenizers are needed and not installed.
    """
    match files.kind:
        case TokenizerType.CHAR_LEVEL:
            return EncoderSettings(Vocabulary.UTF8_BYTES, b"", CHAR_LEVEL_SIZE, eod=CHAR_LEVEL_EOD)
        case TokenizerType.TIKTOKEN:
            return _read_tiktoken(_vocabulary_file(files), files, read)
        case TokenizerType.GPT2_BPE:
            return _read_vocabulary_and_merges(_vocabulary_file(files), files.merge_file, read)
        case TokenizerType.HF:
            path = _vocabulary_file(files)
            return _read_tokenizer_json(posixpath.join(path, "tokenizer.json") if is_folder(path) else path, read)
        case TokenizerType.HF_GPT2:
            return _read_hugging_face_folder(_vocabulary_file(files), files, read, is_folder)


def _vocabulary_file(files: TokenizerFiles) -> str:
    """Return the path in --vocab-file. Raises BadOption if it is not given."""
    if files.vocab_file is None:
        raise BadOption(f"--tokenizer-type {files.kind.value} needs --vocab-file; nothing is downloaded here")
    return files.vocab_file


def _read_file(path: str, option: str, read: ReadBytes) -> bytes:
    """Return the content of a file, by `read`. option: the flag that names the file, for the message.

    Raises BadOption if `read` raises OSError, ValueError or BadOption.
    """
    try:
        return read(path)
    except (OSError, ValueError) as error:
        raise BadOption(f"{option} {path}: {error}") from error


def _read_hugging_face_folder(
    path: str, files: TokenizerFiles, read: ReadBytes, is_folder: Callable[[str], bool]
) -> EncoderSettings:
    """Return the settings of a vocabulary that GPT2TokenizerFast.from_pretrained can read. Raises BadOption.

    path: a folder with tokenizer.json, or with vocab.json and merges.txt; or one of these files. read: returns the
    content of a file. is_folder: returns True if a path is a folder.
    """
    if not is_folder(path):
        return (
            _read_tokenizer_json(path, read)
            if files.merge_file is None
            else _read_vocabulary_and_merges(path, files.merge_file, read)
        )
    try:
        return _read_tokenizer_json(posixpath.join(path, "tokenizer.json"), read)
    except BadOption as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
    return _read_vocabulary_and_merges(posixpath.join(path, "vocab.json"), posixpath.join(path, "merges.txt"), read)


def _read_tokenizer_json(path: str, read: ReadBytes) -> EncoderSettings:
    """Return the settings of a tokenizer.json. Raises BadOption."""
    content = _read_file(path, "--vocab-file", read)
    return _settings_of_tokenizer(_parse_tokenizer(path, content), content)


def _parse_tokenizer(path: str, content: bytes) -> Any:
    """Return the tokenizers.Tokenizer that a tokenizer.json describes.

    path: for the message. content: of the file. Raises BadOption for other content.
    """
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_buffer(content)
    except Exception as error:  # the library raises Exception itself
        raise BadOption(f"--vocab-file {path}: not a tokenizer.json of Hugging Face tokenizers: {error}") from error


def _settings_of_tokenizer(tokenizer: Any, content: bytes) -> EncoderSettings:
    """Return the encoder settings of a Hugging Face tokenizer.

    content: of its tokenizer.json. The end-of-document token is the first of END_NAMES that it has; None if it has none
    of them.
    """
    ids = tokenizer.get_vocab(with_added_tokens=True)
    eod_text = next((name for name in END_NAMES if name in ids), None)
    return EncoderSettings(
        Vocabulary.TOKENIZER_JSON,
        content,
        max(ids.values(), default=0) + 1,
        eod=None if eod_text is None else ids[eod_text],
        eod_text=eod_text,
    )


def _read_vocabulary_and_merges(path: str, merge_file: str | None, read: ReadBytes) -> EncoderSettings:
    """Return the settings of a byte-level BPE like GPT-2's, built from vocab.json and merges.txt.

    path: of vocab.json. merge_file: the path of merges.txt, None if it was not given. read: returns the content of a
    file. Raises BadOption if one is missing or wrong.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    if merge_file is None:
        raise BadOption("a vocab.json needs --merge-file, the merges.txt beside it")
    try:
        ids = json.loads(_read_file(path, "--vocab-file", read))
        lines = _read_file(merge_file, "--merge-file", read).decode().splitlines()
    except ValueError as error:
        raise BadOption(f"--vocab-file {path}, --merge-file {merge_file}: {error}") from error
    if not isinstance(ids, dict) or not all(isinstance(value, int) and value >= 0 for value in ids.values()):
        raise BadOption(f"--vocab-file {path}: expected an object of tokens and their ids")
    merges = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#version")]
    try:
        tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    except Exception as error:
        raise BadOption(f"--merge-file {merge_file}: does not fit {path}: {error}") from error
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if END_OF_TEXT in ids:
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False, special=True)])
    return _settings_of_tokenizer(tokenizer, tokenizer.to_str().encode())


def _read_tiktoken(path: str, files: TokenizerFiles, read: ReadBytes) -> EncoderSettings:
    """Return the settings of a .tiktoken file.

    If the number of ranks is that of a published vocabulary, its end-of-document id and vocabulary size are used. Else
    the end-of-document id is the highest rank + 1, and the size is one more. The split rule is --tiktoken-pattern, else
    that of the file name. read: returns the content of a path. Raises BadOption if the file cannot be read or is wrong,
    or if the split rule is unknown.
    """
    content = _read_file(path, "--vocab-file", read)
    ranks = tiktoken_ranks(path, content)
    pattern = files.tiktoken_pattern or _pattern_name_of_file(path)
    if pattern not in TIKTOKEN_PATTERNS:
        known = ", ".join(TIKTOKEN_PATTERNS)
        raise BadOption(f"--tiktoken-pattern {pattern}: unknown; known are {known}")
    end = max(ranks.values()) + 1
    eod, size = _PUBLISHED_RANKS.get(len(ranks), (end, end + 1))
    return EncoderSettings(Vocabulary.TIKTOKEN, content, size, eod=eod, pattern=pattern, eod_text=END_OF_TEXT)


def _pattern_name_of_file(path: str) -> str:
    """Return the key in TIKTOKEN_PATTERNS of the split rule for a .tiktoken file whose name begins with that of a
    published vocabulary, such as cl100k.

    Raises BadOption for any other name. path: of the file, with or without folders.
    """
    name = posixpath.basename(path)
    known = {"r50k": "gpt2", "p50k": "gpt2", "gpt2": "gpt2", "cl100k": "cl100k", "o200k": "o200k"}
    for prefix, pattern in known.items():
        if name.startswith(prefix):
            return pattern
    raise BadOption(f"--vocab-file {path}: a .tiktoken file does not say how text is split; give --tiktoken-pattern")


def tiktoken_ranks(path: str, content: bytes) -> dict[bytes, int]:
    """Return the rank of every token of a .tiktoken file. path: for the message. content: of the file.

    Raises BadOption, with the line, if a line is malformed. Raises it also if there is no rank, or if a rank is
    negative or occurs twice.
    """
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line:
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error) as error:
            raise BadOption(f"--vocab-file {path}, line {number}: expected a token in base64 and its rank") from error
    if len(set(ranks.values())) != len(ranks) or min(ranks.values(), default=-1) < 0:
        raise BadOption(f"--vocab-file {path}: ranks must be different numbers from 0 up, one for each token")
    return ranks

"""The token ids of many documents in the form of a shard: one array, without empty documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turnout.preprocess.indexed_dataset import MAX_SEQUENCE_TOKENS


@dataclass(frozen=True, slots=True)
class Sequences:
    """The token ids of consecutive documents."""

    tokens: NDArray[Any]  # of all documents, one after the other
    lengths: NDArray[np.int32]  # tokens of each document, >= 1
    out_of_range: tuple[int, ...]  # positions of documents that were left out: an id is not below the vocabulary size
    too_long: tuple[int, ...]  # positions of documents that were left out: MAX_SEQUENCE_TOKENS tokens or more
    empty: tuple[int, ...]  # positions of documents that were left out: no tokens


def assemble(
    ids: Sequence[NDArray[np.uint32]], vocabulary_size: int, dtype: np.dtype[Any], eod: int | None
) -> Sequences:
    """Return the documents as one array of `dtype`, with their lengths.

    ids: the token ids of each document. vocabulary_size: one more than the highest valid id. eod: a token that is
    appended to each document and counted in its length; None for no such token. A document with an invalid id, or of
    MAX_SEQUENCE_TOKENS tokens or more, or without tokens, is left out and listed in the result. Source: DL-74, DL-78
    """
    flat = _joined(ids)
    empty = tuple(position for position, tokens in enumerate(ids) if not tokens.size)
    out_of_range: tuple[int, ...] = ()
    too_long = tuple(position for position, tokens in enumerate(ids) if len(tokens) >= MAX_SEQUENCE_TOKENS)
    if flat.size and int(flat.max()) >= vocabulary_size:
        out_of_range = tuple(p for p, tokens in enumerate(ids) if tokens.size and int(tokens.max()) >= vocabulary_size)
    if out_of_range or too_long:
        left_out = {*out_of_range, *too_long}
        ids = [tokens for position, tokens in enumerate(ids) if position not in left_out]
        flat = _joined(ids)
    ids = [tokens for tokens in ids if tokens.size]
    lengths = np.fromiter(map(len, ids), np.int64, len(ids))
    if eod is None:
        return Sequences(flat.astype(dtype), lengths.astype("<i4"), out_of_range, too_long, empty)
    return Sequences(_with_ends(ids, dtype, eod), (lengths + 1).astype("<i4"), out_of_range, too_long, empty)


def _joined(ids: Sequence[NDArray[np.uint32]]) -> NDArray[np.uint32]:
    """Return the token ids of all documents, one after the other."""
    return np.concatenate(ids) if len(ids) else np.empty(0, np.uint32)


def _with_ends(ids: Sequence[NDArray[np.uint32]], dtype: np.dtype[Any], eod: int) -> NDArray[Any]:
    """Return the documents as one array, with `eod` after each of them."""
    joined = np.full(sum(map(len, ids)) + len(ids), eod, dtype)
    start = 0
    for tokens in ids:
        end = start + len(tokens)
        joined[start:end] = tokens
        start = end + 1
    return joined

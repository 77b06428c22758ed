"""Encode JSON lines by gigatoken's own reader and write nothing: the least that a preprocessor has to do.

`python gigatoken_script.py TOKENIZER_JSON FILE [TOKENS]`. The tokens are written, with the end of each document, only
where the third argument names a file.
"""

from __future__ import annotations

import sys
from pathlib import Path

import gigatoken


def main(vocabulary: str, path: str, tokens: str | None = None) -> None:
    """Encode one file on all threads that RAYON_NUM_THREADS allows, and print the number of documents.

    vocabulary: path of tokenizer.json. path: of the JSON lines. tokens: file for the tokens; None writes nothing.
    """
    tokenizer = gigatoken.Tokenizer(vocabulary)
    documents = tokenizer.encode_files(gigatoken.JsonlFileSource([path]), parallel=True)
    print(f"{len(documents)} documents")
    if tokens is not None:
        _write(documents, Path(tokens))


def _write(documents: object, path: Path) -> None:
    """Write the tokens as 16-bit integers to `path`, with token 0, the end of a document, after each document.

    documents: awkward array with one list of tokens for each document.
    """
    import awkward
    import numpy

    ends = numpy.cumsum(awkward.to_numpy(awkward.num(documents)))
    flat = awkward.to_numpy(awkward.flatten(documents)).astype(numpy.uint16)
    path.write_bytes(numpy.insert(flat, ends, 0).tobytes())  # the end of a document is the first token


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Write Megatron datasets by datatrove: `python datatrove_script.py TOKENIZER_JSON OUT FILE [FILE]`.

datatrove gives each task whole files. The text is therefore in as many files as tasks, and there are two tasks.
"""

from __future__ import annotations

import sys
from pathlib import Path

from datatrove.executor import LocalPipelineExecutor
from datatrove.pipeline.readers import JsonlReader
from datatrove.pipeline.tokens.megatron_tokenizer import MegatronDocumentTokenizer

END_OF_DOCUMENT = "<|endoftext|>"


def main(vocabulary: str, out: str, *paths: str) -> None:
    """Tokenize the files, each in a task and a worker process of its own.

    vocabulary: path of tokenizer.json. out: folder of the output, which is created. paths: files of JSON lines in one
    folder, at least one.
    """
    files = [Path(path) for path in paths]
    listing = Path(out) / "files.txt"
    listing.parent.mkdir(parents=True, exist_ok=True)
    listing.write_text("".join(f"{file.name}\n" for file in files))
    LocalPipelineExecutor(
        pipeline=[
            JsonlReader(str(files[0].parent), paths_file=str(listing), compression=None),
            MegatronDocumentTokenizer(out, tokenizer_name_or_path=vocabulary, eos_token=END_OF_DOCUMENT),
        ],
        tasks=len(files),
        workers=len(files),
        logging_dir=str(Path(out) / "logs"),
    ).run()


if __name__ == "__main__":
    main(*sys.argv[1:])

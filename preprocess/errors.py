"""Errors that end a run of preprocessing: one class for each action that the caller can take.

A fault in one document is not an error but a value (`DocumentFault` in model.py), unless `--on-error stop` is set.
"""

from __future__ import annotations


class PreprocessError(Exception):
    """A run of preprocessing cannot continue. Finished shards stay."""


class BadOption(PreprocessError):
    """An option, or a file that an option names, cannot be used. Correct the command line and start again."""


class BadDocument(PreprocessError):
    """A document has a fault and `--on-error` is stop. Repair the line, or choose another `--on-error`."""


class RunInProgress(PreprocessError):
    """Another run writes the same output. Wait for it or end it, then start again."""


class ResumeRefused(PreprocessError):
    """Finished shards belong to other inputs or options. Remove the shards' folder, or restore what was changed."""


class OutputExists(PreprocessError):
    """The output exists and was made from something else. Remove it or choose another prefix."""


class LostWorker(PreprocessError):
    """A chunk failed again when it was repeated: its worker process ended, or Spark gave up its task.

    Often the memory is too small: remove the shards' folder, and set a smaller --chunk-bytes.
    """


class BrokenDataset(PreprocessError):
    """A dataset's files do not fit together: sizes, offsets, counts or the header are wrong. Make the dataset again."""

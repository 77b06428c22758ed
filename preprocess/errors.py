"""Errors that end a run of preprocessing: one class for each action that the caller can take.

A fault in one document is not an error but a value (`Fault` in model.py), unless the run was told to stop at it.
"""

from __future__ import annotations


class PreprocessError(Exception):
    """A run of preprocessing cannot go on. Finished shards are kept unless a subclass says otherwise."""


class BadOption(PreprocessError):
    """An option, or a file that an option names, cannot be used. Correct the command line and start again."""


class BadDocument(PreprocessError):
    """A document has a fault and the run is to stop at faults. Repair the line, or choose another `--on-error`."""


class RunInProgress(PreprocessError):
    """Another run writes the same output. Wait for it or end it, then start again."""


class ResumeRefused(PreprocessError):
    """Finished shards belong to other inputs or options. Remove the shards' folder, or restore what was changed."""


class OutputExists(PreprocessError):
    """The output exists and was made from something else. Remove it or choose another prefix."""


class LostWorker(PreprocessError):
    """A worker process ended without an answer each time that it had this chunk, often for want of memory."""


class BrokenDataset(PreprocessError):
    """A dataset's files do not fit together: sizes, offsets, counts or the header are wrong. Make the dataset again."""

"""Formats and rules of checkpoints as values: nothing here touches memory, disk or network."""

"""A cluster in one Python process, for demos, examples and tests."""

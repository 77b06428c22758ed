"""The window: the `turnout` command."""

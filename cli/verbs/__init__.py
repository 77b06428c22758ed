"""The verbs of the `turnout` command, one module each: its options, its calls of the API server, and its output."""

"""The verbs of the `turnout` command, a module a verb: its options, what it asks the API server, what it prints."""

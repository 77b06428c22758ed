"""Replays of a trace with and without lending: figures of `turnout simulate` as text, JSON or YAML."""

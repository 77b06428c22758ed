"""Replays of a trace with and without lending, as `turnout simulate` tells them: figures as text, JSON or YAML."""

"""Replays of a trace with and without lending, as `turnout simulate` tells them: figures, plots and a page."""

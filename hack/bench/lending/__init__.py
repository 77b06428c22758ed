"""Replays of traces with the autoscaler and without, and the baseline beside them: an HPA."""

"""The autoscaler: how long it takes to decide and to react, and `turnout why`, which decides once more."""

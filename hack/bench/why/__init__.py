"""The benchmark `why`: how long `turnout why` takes on a cluster of 1,000 jobs."""

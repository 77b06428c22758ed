"""The kinds of jobs, one pure module each: read(raw) -> Job, resize(raw, workers) -> Change."""

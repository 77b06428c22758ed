"""`make demo-train`: a training job on the local cluster grows, shrinks, meets faults, and loses no step."""

"""The parts of the placement benchmark: inputs, baselines and the exact optimum."""

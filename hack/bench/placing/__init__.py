"""The parts of the placement benchmark: inputs, rivals and the exact optimum."""

"""The parts of the extender's benchmark."""

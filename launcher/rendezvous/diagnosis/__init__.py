"""The coordinator's steps of node checks and of hang reports, as values."""

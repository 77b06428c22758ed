"""The I/O of the commands: files and the terminal."""

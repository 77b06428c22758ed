"""The rim of the console: files and the terminal."""

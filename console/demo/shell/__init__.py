"""The rim of the demo: processes, HTTP, the terminal, the clock."""

"""The rim of the launcher: sockets, processes, files, the clock."""

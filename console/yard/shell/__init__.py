"""The rim of the yard: its process, its folder, its answers."""

"""The I/O of pods as processes: folders, namespaces, children."""

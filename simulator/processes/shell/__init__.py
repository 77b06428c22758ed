"""The rim of pods as processes: folders, namespaces, children."""

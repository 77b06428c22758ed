"""The local cluster under load: pods by the thousand, and watchers."""

"""What verbs share: files, the terminal, lists of the cluster, and programs as children."""

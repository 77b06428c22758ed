"""Programs that a plane starts, and what they keep: command lines, training-operator's wants, what etcd holds."""

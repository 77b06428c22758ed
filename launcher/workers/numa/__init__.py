"""CPUs of a training process: the machine's CPU topology, and the binding of processes to CPUs."""

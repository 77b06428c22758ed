"""Where the processes of a job stand: the stacks of all ranks as one tree."""

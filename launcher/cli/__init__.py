"""The command line: every option of torchrun, of dlrover-run, of the guide and of our own, in one table."""

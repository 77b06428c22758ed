"""`turnout release`: take our scheduling gate from every pod, when nobody else will."""

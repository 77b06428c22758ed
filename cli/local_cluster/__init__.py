"""`turnout local`: a cluster on this machine, in the background, until it is stopped."""

"""The job controllers beside the Training Operator: the same jobs on one API server, one controller after the other."""

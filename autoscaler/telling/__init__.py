"""What the lender tells: decisions as words and sentences, the decision log, and when waiting jobs may start."""

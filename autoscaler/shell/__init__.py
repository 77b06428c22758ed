"""The rim of the lender: watches, writes, tells."""

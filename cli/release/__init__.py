"""`turnout release`: removes the scheduling gate from every pod if no nominator does so."""

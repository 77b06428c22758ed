"""The checkpoint daemon beside an agent: it hashes what training processes save, and writes it to storage."""

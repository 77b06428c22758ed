"""The wire formats of the extender: bytes to nouns and nouns to bytes. It decides nothing."""

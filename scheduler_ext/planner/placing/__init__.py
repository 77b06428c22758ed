"""Parts of placing one gang: the ranks of its members, and a domain for all of its shapes."""

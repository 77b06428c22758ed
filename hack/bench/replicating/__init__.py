"""Copies from keeper to keeper, as the checkpoint benchmark measures them."""

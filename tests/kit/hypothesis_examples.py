"""How many examples a property test tries: what it names in `make test-slow`, of them a third in `make test`."""

from hypothesis import settings

USUAL = 100  # hypothesis' own default, which the profile `usual` keeps


def scaled(count: int) -> int:
    """Give a count for the profile that is loaded."""
    return max(1, count * settings.default.max_examples // USUAL)

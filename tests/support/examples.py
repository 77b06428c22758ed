"""How many examples a property test tries: what it names in `make test`, ten times as many in `make test-long`."""

from hypothesis import settings

USUAL = 100  # hypothesis' own default, which the profile `ci` keeps


def scaled(count: int) -> int:
    """Give a count for the profile that is loaded."""
    return count * settings.default.max_examples // USUAL

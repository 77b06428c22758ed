"""What a member may believe of a coordinator: the half of the fence that every agent carries itself."""

from __future__ import annotations

from launcher.wire import Base, Formed


def accepts(base: Base, formed: Formed) -> bool:
    """May a member with this base train in this round?

    It takes part in rounds in their order, and in none that follows a world older than its own: so of two worlds that
    follow the same one, and share a member with it, one at most can train. DESIGN §5
    """
    return formed.round > base.round and formed.base >= base.round

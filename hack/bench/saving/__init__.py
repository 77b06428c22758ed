"""How long a save stops training, and what it costs beside the copy that it cannot do without."""

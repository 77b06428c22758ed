"""How long a save stops training and what it costs, beside the copy that no saver can do without."""

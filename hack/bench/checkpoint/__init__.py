"""The time for which a save stops training and its cost, compared with the copy that every saver needs."""

"""Where a map may come from: one pure module per origin, each text -> model.Reading."""

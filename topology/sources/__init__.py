"""Read maps: one pure module per format, each from text to model.Reading."""

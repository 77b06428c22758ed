"""One pure module for each way a fabric can be written down."""

"""The tokenizers that the guide names, on the library that is fastest and gives equal tokens."""

"""The HTTP server of all our services, with its own limits against unknown clients."""

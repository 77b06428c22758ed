"""What a write does: patches, ownership of fields, deletion, the subresources."""

"""The effects of writes: patches, ownership of fields, deletion, the subresources."""

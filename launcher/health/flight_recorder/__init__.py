"""Records of torch's Flight Recorder: parsed, and analysed for the ranks that block a collective."""

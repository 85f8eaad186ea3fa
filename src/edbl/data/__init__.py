"""Images: where they come from, in which order they arrive, how batches are drawn and mixed."""

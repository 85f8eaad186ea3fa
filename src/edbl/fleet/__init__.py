"""Several runs on one machine: side by side, with first tasks that they share."""

"""The speed of a step, what suits a GPU best, and what works on a device."""

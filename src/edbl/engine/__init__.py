"""The engine: the only place that trains, evaluates, and knows about devices and files."""

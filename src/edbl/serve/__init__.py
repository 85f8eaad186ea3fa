"""A model that is taught and asked over HTTP: `edbl serve`, and the client of it, `edbl.connect`."""

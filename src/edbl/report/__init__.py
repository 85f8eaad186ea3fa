"""Reports: tables, plots and one self-contained page, from records alone."""

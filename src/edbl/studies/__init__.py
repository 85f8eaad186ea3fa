"""Studies: the paper's tables and figures, questions of one's own, and the pages that show their records."""

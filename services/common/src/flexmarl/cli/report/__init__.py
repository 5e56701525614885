"""report.html: one file without anything outside it, out of a run directory."""

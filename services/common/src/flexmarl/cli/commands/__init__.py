"""One module per command; each has a function `command`, light to import."""

"""Brings what a job names by URI into a cache folder; using it is not here."""

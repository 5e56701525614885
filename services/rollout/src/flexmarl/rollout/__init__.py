"""Plays episodes: agents take turns against inference engines."""

"""Versioned tensor sets in named shared memory, and how they travel."""

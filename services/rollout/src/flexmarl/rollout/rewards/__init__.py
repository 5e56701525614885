"""Rewards and the scorers that they are made of."""

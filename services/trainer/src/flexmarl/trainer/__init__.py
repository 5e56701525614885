"""A training slot: leases groups, folds their gradients, steps, publishes."""

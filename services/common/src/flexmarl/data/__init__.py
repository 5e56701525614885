"""Where tasks come from and which of them a step plays."""

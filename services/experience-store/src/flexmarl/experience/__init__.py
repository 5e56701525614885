"""The experience store: one stream per policy, whole groups, nothing twice."""

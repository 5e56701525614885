"""Observes MARLJobs, renders their workloads, applies them, writes their status."""

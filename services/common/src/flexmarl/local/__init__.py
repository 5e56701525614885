"""All processes of a job on one machine, under one supervisor."""

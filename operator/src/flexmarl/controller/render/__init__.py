"""What a MARLJob is on a cluster: pure functions from a job to manifests."""

"""What processes and people say to each other: the MARLJob models and the generated protobuf."""

"""What a pod does before its process starts: looks at what it was given, and fetches."""

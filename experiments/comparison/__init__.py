"""What the comparison at equal cost is made of: settings with their data, the loop that all methods share, the peers."""

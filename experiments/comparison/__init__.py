"""What the comparison at equal cost is made of: settings with their data, the loop of all methods, the peers."""

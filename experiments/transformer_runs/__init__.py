"""What the comparison of transformers is made of: tasks with their data, the loop, cuts, rows and tables."""

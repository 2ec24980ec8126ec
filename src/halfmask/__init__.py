"""Train models on tables in which only part of each row is private."""

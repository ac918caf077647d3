"""What several test files use: data, models, processes, comparisons."""

"""The comparison of a mirror with its source, while both are in use."""

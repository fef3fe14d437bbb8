"""Every committed change, appended to a table for each source table."""

"""One bank, one set of faults and one reader for several systems: `make compare`."""

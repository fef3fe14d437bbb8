"""What users read in their own Spark session: the tables of a cut, and the branches of global transactions."""

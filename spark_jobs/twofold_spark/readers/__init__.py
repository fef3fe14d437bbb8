"""What users read in their own session: tables of a cut, branches of global transactions."""

"""What users read in their own session: tables of a cut, branches of global transactions.

Decides which version of each table a cut shows. Reads the mirror's place, and changes nothing.
Begin with `cut_tables`; the package `twofold_spark` has the names that users import.
"""

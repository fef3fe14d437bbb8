"""Current-state tables: whole transactions, one consistent cut after another."""

"""Read a mirror with DuckDB, in the folder of its default catalog:

pip install duckdb
python folder.py lake "SELECT owner, balance FROM public.accounts ORDER BY id"
"""

import sqlite3
import sys
from contextlib import closing

import duckdb

warehouse, query = sys.argv[1:]
with closing(sqlite3.connect(f"{warehouse}/catalog.db")) as catalog:
    # Of each table the file that says what its plain name is now: the last whole cut.
    tables = catalog.execute("SELECT table_namespace, table_name, metadata_location FROM iceberg_tables").fetchall()
lake = duckdb.connect()
lake.execute("INSTALL iceberg")
lake.execute("LOAD iceberg")
for schema, table, location in tables:
    lake.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    lake.execute(f"""CREATE VIEW "{schema}"."{table}" AS FROM iceberg_scan('{location}')""")
print(lake.sql(query))

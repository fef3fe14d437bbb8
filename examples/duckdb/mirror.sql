-- Read a mirror with DuckDB, in a REST catalog: duckdb < mirror.sql
INSTALL iceberg;
LOAD iceberg;
ATTACH '' AS lake (TYPE iceberg, ENDPOINT 'http://127.0.0.1:8181', AUTHORIZATION_TYPE 'none');

-- Plain names are the last whole cut: a REST catalog changes all tables at once.
SELECT owner, balance FROM lake.public.accounts ORDER BY id;

-- The cuts that are kept, and each table's version in them.
SELECT sequence, t.name, t.version
FROM (SELECT sequence, unnest(tables) AS t FROM lake.twofold.cuts WHERE whole)
ORDER BY sequence;

-- A table at one of these versions.
SELECT owner, balance FROM lake.public.accounts AT (VERSION => 7123456789012345678) ORDER BY id;

-- Read a mirror with Spark SQL, in the catalog of its warehouse, the default:
--
--   spark-sql --jars $(twofold-spark jars | tr : ,) \
--     --conf spark.sql.catalog.twofold=org.apache.iceberg.spark.SparkCatalog \
--     --conf spark.sql.catalog.twofold.type=jdbc \
--     --conf spark.sql.catalog.twofold.uri=jdbc:sqlite:$PWD/lake/catalog.db \
--     --conf spark.sql.catalog.twofold.warehouse=$PWD/lake -f mirror.sql

-- Plain names are the last whole cut.
SELECT owner, balance FROM twofold.public.accounts ORDER BY id;

-- The cuts that are kept, and each table's version in them.
SELECT sequence, t.name, t.version
FROM twofold.twofold.cuts LATERAL VIEW explode(tables) AS t
WHERE whole ORDER BY sequence;

-- A table at one of these versions.
SELECT owner, balance FROM twofold.public.accounts VERSION AS OF 7123456789012345678 ORDER BY id;

CREATE SCHEMA IF NOT EXISTS twofold;
CREATE OR REPLACE FUNCTION twofold.tell_ddl() RETURNS event_trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off AS $twofold$
#variable_conflict use_column
DECLARE
    twofold_named oid[];
    twofold_table oid;
    twofold_found record;
BEGIN
    IF TG_EVENT = 'sql_drop' AND TG_TAG = 'ALTER TABLE' THEN
        RETURN;  -- its end tells of the same tables
    ELSIF TG_EVENT = 'sql_drop' THEN
        WITH d AS MATERIALIZED (SELECT * FROM pg_event_trigger_dropped_objects())
        SELECT array_agg(found.oid) INTO twofold_named FROM (
            SELECT d.objid AS oid FROM d WHERE d.classid = 'pg_class'::regclass AND d.objsubid > 0
            UNION
            SELECT b.oid FROM (SELECT DISTINCT schema_name FROM d WHERE object_type = 'index' AND NOT is_temporary) made
              JOIN pg_namespace n ON n.nspname = made.schema_name
              CROSS JOIN LATERAL (SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.relnamespace = n.oid OFFSET 0) b WHERE b.relreplident = 'f' AND b.relkind IN ('r', 'p')
            UNION
            SELECT b.oid FROM d JOIN pg_namespace n ON n.nspname = d.address_names[1]
              JOIN pg_class b ON b.relnamespace = n.oid AND b.relname = d.address_names[2]
             WHERE d.object_type = 'publication relation'
            UNION
            SELECT b.oid FROM d JOIN pg_namespace n ON n.nspname = d.address_names[1]
              CROSS JOIN LATERAL (SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.relnamespace = n.oid OFFSET 0) b
             WHERE d.object_type = 'publication namespace') found;
    ELSE
        WITH d AS MATERIALIZED (SELECT classid, objid FROM pg_event_trigger_ddl_commands())
        SELECT array_agg(found.oid) INTO twofold_named FROM (
            SELECT d.objid AS oid FROM d WHERE d.classid = 'pg_class'::regclass
            UNION
            SELECT i.indrelid FROM d JOIN pg_index i ON d.classid = 'pg_class'::regclass AND i.indexrelid = d.objid
            UNION
            SELECT o.conrelid FROM d JOIN pg_constraint o ON d.classid = 'pg_constraint'::regclass AND o.oid = d.objid
            UNION
            SELECT b.oid FROM d CROSS JOIN LATERAL (SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.relnamespace = d.objid OFFSET 0) b
             WHERE d.classid = 'pg_namespace'::regclass
            UNION
            SELECT r.prrelid FROM d
              JOIN pg_publication_rel r ON d.classid = 'pg_publication_rel'::regclass AND r.oid = d.objid
            UNION
            SELECT r.prrelid FROM d
              JOIN pg_publication_rel r ON d.classid = 'pg_publication'::regclass AND r.prpubid = d.objid
            UNION
            SELECT b.oid FROM d
              JOIN pg_publication_namespace s ON d.classid = 'pg_publication_namespace'::regclass AND s.oid = d.objid
              CROSS JOIN LATERAL (SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.relnamespace = s.pnnspid OFFSET 0) b
            UNION
            SELECT b.oid FROM d
              JOIN pg_publication_namespace s ON d.classid = 'pg_publication'::regclass AND s.pnpubid = d.objid
              CROSS JOIN LATERAL (SELECT c.oid, c.relreplident, c.relkind FROM pg_class c WHERE c.relnamespace = s.pnnspid OFFSET 0) b
            UNION
            SELECT b.oid FROM d
              JOIN pg_publication p ON d.classid = 'pg_publication'::regclass AND p.oid = d.objid AND p.puballtables
              CROSS JOIN LATERAL (SELECT c.oid FROM pg_class c WHERE c.oid >= 16384 OFFSET 0) b
            UNION
            SELECT a.attrelid FROM pg_attribute a
             WHERE TG_TAG IN ('ALTER TYPE', 'ALTER DOMAIN', 'ALTER COLLATION') AND a.attnum > 0
               AND (a.atttypid >= 16384 OR a.attcollation >= 16384)) found;
    END IF;
    IF twofold_named IS NULL THEN
        RETURN;
    END IF;
    WITH RECURSIVE above AS (
        SELECT unnest(twofold_named) AS oid
        UNION
        SELECT i.inhparent FROM above JOIN pg_inherits i ON i.inhrelid = above.oid
    ), below AS (
        SELECT unnest(twofold_named) AS oid
        UNION
        SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
    ), concerned AS (
        SELECT b.oid, b.relnamespace FROM (SELECT oid FROM above UNION SELECT oid FROM below) every
          JOIN pg_class b ON b.oid = every.oid AND b.relkind IN ('r', 'p') AND b.relpersistence <> 't'
    )
    SELECT array_agg(concerned.oid) INTO twofold_named FROM concerned
     WHERE EXISTS (SELECT FROM pg_publication p WHERE p.puballtables)
        OR EXISTS (SELECT FROM concerned other JOIN pg_publication_rel r ON r.prrelid = other.oid)
        OR EXISTS (SELECT FROM concerned other JOIN pg_publication_namespace s ON s.pnnspid = other.relnamespace);
    FOREACH twofold_table IN ARRAY coalesce(twofold_named, ARRAY[]::oid[]) LOOP
        FOR twofold_found IN
            SELECT told.described FROM (
WITH RECURSIVE wanted AS (
    SELECT DISTINCT unnest(ARRAY[twofold_table]::oid[]) AS oid
), tree AS (
    SELECT oid AS root, oid, NULL::xid AS linked FROM wanted
    UNION ALL
    SELECT tree.root, i.inhrelid, i.xmin FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
), above AS (
    SELECT oid AS leaf, oid, 0 AS height, NULL::xid AS linked FROM wanted
    UNION ALL
    SELECT above.leaf, i.inhparent, above.height + 1, i.xmin FROM above
      JOIN pg_catalog.pg_class c ON c.oid = above.oid AND c.relispartition
      JOIN pg_catalog.pg_inherits i ON i.inhrelid = above.oid
), parts AS (
    SELECT wanted.oid AS root, a.atttypid AS type FROM wanted
      JOIN pg_catalog.pg_attribute a ON a.attrelid = wanted.oid AND a.attnum > 0 AND a.atttypid >= 16384
    UNION
    SELECT parts.root, part.type FROM parts
      JOIN pg_catalog.pg_type t ON t.oid = parts.type
      CROSS JOIN LATERAL (
           SELECT t.typelem AS type
           UNION ALL SELECT t.typbasetype
           UNION ALL SELECT r.rngsubtype FROM pg_catalog.pg_range r WHERE r.rngtypid = t.oid
           UNION ALL SELECT r.rngtypid FROM pg_catalog.pg_range r WHERE r.rngmultitypid = t.oid
           UNION ALL SELECT m.atttypid FROM pg_catalog.pg_attribute m
                      WHERE t.typtype = 'c' AND m.attrelid = t.typrelid AND m.attnum > 0) part
     WHERE part.type >= 16384
), below AS (
    SELECT tree.root,
           coalesce(sum(greatest(b.reltuples::bigint, pg_catalog.pg_stat_get_live_tuples(b.oid))) FILTER (WHERE b.relkind = 'r'), 0)::bigint AS rows,
           left(encode(sha256(string_agg(b.oid || ':' || b.relfilenode, ',' ORDER BY b.oid)::bytea), 'hex'), 16) AS files,
           jsonb_agg(jsonb_build_array(b.oid::bigint, u.xmin = tree.linked, tree.linked::text::bigint)) FILTER (WHERE b.oid <> tree.root) AS partitions
      FROM tree JOIN pg_catalog.pg_class b ON b.oid = tree.oid LEFT JOIN pg_catalog.pg_type u ON u.oid = b.reltype
     GROUP BY tree.root
), missing AS (
    SELECT tree.root, m.attname, max(m.attmissingval::text) AS value FROM tree
      JOIN pg_catalog.pg_class r ON r.oid = tree.root AND r.relkind = 'p'
      JOIN pg_catalog.pg_attribute m ON m.attrelid = tree.oid AND m.attnum > 0 AND m.atthasmissing AND NOT m.attisdropped
     GROUP BY tree.root, m.attname
), parents AS (
    SELECT leaf, jsonb_agg(oid::bigint ORDER BY height) AS oids,
           jsonb_agg(linked::text::bigint ORDER BY height) AS links FROM above WHERE height > 0 GROUP BY leaf
), composites AS (
    SELECT parts.root, jsonb_agg(jsonb_build_array(t.oid::bigint, m.attnum, m.attname, m.xmin::text::bigint)) AS attributes
      FROM parts JOIN pg_catalog.pg_type t ON t.oid = parts.type AND t.typtype = 'c'
      JOIN pg_catalog.pg_attribute m ON m.attrelid = t.typrelid AND m.attnum > 0 AND NOT m.attisdropped
     GROUP BY parts.root
), enums AS (
    SELECT parts.root, jsonb_agg(jsonb_build_array(e.oid::bigint, e.enumlabel, e.xmin::text::bigint)) AS labels
      FROM parts JOIN pg_catalog.pg_enum e ON e.enumtypid = parts.type GROUP BY parts.root
), excepted AS (
    SELECT above.leaf, r.prpubid AS publication FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.oid
     WHERE (to_jsonb(r) ->> 'prexcept')::boolean
), members AS (
    SELECT leaf, publication, jsonb_agg(DISTINCT oid::bigint) AS oids, bool_or(by_parent) AS by_parent FROM (
        SELECT above.leaf, r.prpubid AS publication, r.oid, above.height > 0 AS by_parent
          FROM above JOIN pg_catalog.pg_publication_rel r ON r.prrelid = above.oid
        UNION ALL
        SELECT above.leaf, s.pnpubid, s.oid, above.height > 0
          FROM above JOIN pg_catalog.pg_class b ON b.oid = above.oid
          JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = b.relnamespace
        UNION ALL
        SELECT above.leaf, p.oid, p.oid, above.height > 0
          FROM above CROSS JOIN pg_catalog.pg_publication p WHERE p.puballtables) member
     WHERE (leaf, publication) NOT IN (SELECT leaf, publication FROM excepted)
     GROUP BY leaf, publication
), published AS (
    SELECT members.leaf, jsonb_agg(jsonb_build_object(
               'name', p.pubname, 'oid', p.oid::bigint, 'row', p.xmin::text::bigint, 'owner', p.pubowner::bigint,
               'operations', concat(CASE WHEN p.pubinsert THEN 'i' END, CASE WHEN p.pubupdate THEN 'u' END,
                                    CASE WHEN p.pubdelete THEN 'd' END, CASE WHEN p.pubtruncate THEN 't' END),
               'via_root', p.pubviaroot, 'generated', coalesce(to_jsonb(p) ->> 'pubgencols', 'n'), 'members', members.oids,
               'by_parent', members.by_parent,
               'filter', CASE WHEN s.oid IS NULL THEN left(encode(sha256(convert_to(r.prqual::text, 'UTF8')), 'hex'), 16) END,
               'columns', CASE WHEN s.oid IS NULL THEN to_jsonb(r.prattrs::smallint[]) END) ORDER BY p.oid) AS publications
      FROM members
      JOIN pg_catalog.pg_publication p ON p.oid = members.publication
      JOIN pg_catalog.pg_class b ON b.oid = members.leaf
      LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = b.oid
      LEFT JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = b.relnamespace
     GROUP BY members.leaf
)
SELECT c.oid::bigint, below.rows,
       jsonb_build_object(
       'major', current_setting('server_version_num')::int / 10000,
       'oid', c.oid::bigint, 'schema', n.nspname, 'name', c.relname, 'kind', c.relkind,
       'persistence', c.relpersistence, 'owner', c.relowner::bigint, 'replica_identity', c.relreplident,
       'row', c.xmin::text::bigint, 'type_row', coalesce(y.xmin::text::bigint, 0), 'toast', c.reltoastrelid::bigint,
       'altered', (SELECT left(encode(sha256(string_agg(a.attnum || ':' || a.xmin, ',' ORDER BY a.attnum)::bytea), 'hex'), 16)
                     FROM pg_catalog.pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0),
       'columns', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                       'number', a.attnum, 'name', a.attname, 'type', a.atttypid::bigint, 'modifier', a.atttypmod,
                       'row', a.xmin::text::bigint, 'collation', a.attcollation::bigint, 'generated', a.attgenerated, 'identity', a.attidentity,
                       'default', CASE WHEN a.atthasmissing THEN a.attmissingval::text ELSE missing.value END) ORDER BY a.attnum), '[]')
                     FROM pg_catalog.pg_attribute a LEFT JOIN missing ON missing.root = c.oid AND missing.attname = a.attname
                    WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       'keys', (SELECT coalesce(jsonb_agg(jsonb_build_object(
                    'index', i.indexrelid::bigint,
                    'constraint', coalesce((SELECT min(o.oid::bigint) FROM pg_catalog.pg_constraint o
                                             WHERE o.conrelid = i.indrelid AND o.conindid = i.indexrelid AND o.contype IN ('p', 'u')), 0),
                    'usable', i.indimmediate AND i.indisvalid
                              AND NOT EXISTS (SELECT FROM pg_catalog.pg_attribute a
                                               WHERE a.attrelid = i.indrelid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
                                                 AND (NOT a.attnotnull
                                                      OR EXISTS (SELECT FROM pg_catalog.pg_constraint t
                                                                  WHERE t.conrelid = i.indrelid AND t.contype = 'n' AND NOT t.convalidated
                                                                    AND t.conkey = ARRAY[a.attnum]))),
                    'primary', i.indisprimary, 'replica_identity', i.indisreplident,
                    'columns', to_jsonb((i.indkey::smallint[])[0:i.indnkeyatts - 1]),
                    'operators', to_jsonb(i.indclass::oid[]::bigint[]), 'collations', to_jsonb(i.indcollation::oid[]::bigint[]))
                    ORDER BY i.indisprimary DESC, i.indnkeyatts, x.relname), '[]')
                  FROM pg_catalog.pg_index i JOIN pg_catalog.pg_class x ON x.oid = i.indexrelid
                 WHERE i.indrelid = c.oid AND i.indisunique AND i.indexprs IS NULL AND i.indpred IS NULL),
       'attributes', coalesce(composites.attributes, '[]'), 'labels', coalesce(enums.labels, '[]'),
       'files', below.files, 'partitions', coalesce(below.partitions, '[]'), 'parents', coalesce(parents.oids, '[]'), 'links', coalesce(parents.links, '[]'),
       'publications', coalesce(published.publications, '[]'))
  FROM wanted
  JOIN pg_catalog.pg_class c ON c.oid = wanted.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  JOIN below ON below.root = c.oid
  LEFT JOIN parents ON parents.leaf = c.oid
  LEFT JOIN composites ON composites.root = c.oid
  LEFT JOIN enums ON enums.root = c.oid
  LEFT JOIN published ON published.leaf = c.oid
  LEFT JOIN pg_catalog.pg_type y ON y.oid = c.reltype
) told(oid, rows, described)
        LOOP
            PERFORM pg_logical_emit_message(true, 'twofold.ddl', convert_to(
                jsonb_build_object('command', TG_TAG, 'table', twofold_found.described)::text, 'UTF8'));
        END LOOP;
    END LOOP;
    -- Decoding orders a message by its end, which is where the next record begins: without one in
    -- between, a row of the transaction around this block could come before what is told of it.
    PERFORM pg_logical_emit_message(true, 'twofold.ddl', ''::text);
EXCEPTION WHEN OTHERS THEN
    BEGIN
        PERFORM pg_logical_emit_message(true, 'twofold.ddl', convert_to(
            jsonb_build_object('command', TG_TAG, 'failed', SQLSTATE)::text, 'UTF8'));
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
END
$twofold$;
DROP EVENT TRIGGER IF EXISTS twofold_ddl;
DROP EVENT TRIGGER IF EXISTS twofold_drop;
CREATE EVENT TRIGGER twofold_ddl ON ddl_command_end WHEN TAG IN ('ALTER COLLATION', 'ALTER DOMAIN', 'ALTER INDEX', 'ALTER PUBLICATION', 'ALTER SCHEMA', 'ALTER TABLE', 'ALTER TYPE', 'CREATE INDEX', 'CREATE PUBLICATION', 'CREATE TABLE', 'CREATE TABLE AS', 'SELECT INTO') EXECUTE FUNCTION twofold.tell_ddl();
CREATE EVENT TRIGGER twofold_drop ON sql_drop EXECUTE FUNCTION twofold.tell_ddl();
ALTER EVENT TRIGGER twofold_ddl ENABLE ALWAYS;
ALTER EVENT TRIGGER twofold_drop ENABLE ALWAYS;
COMMENT ON SCHEMA "twofold" IS 'twofold: event triggers of ["bank"]';

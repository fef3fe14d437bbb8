"""Finds published tables whose stream would contradict their rows, each with the statements that
repair it.

PostgreSQL accepts such tables. Rows of two keys would come under one key, changes would come
without the row that they replace, or not at all. Reads only the catalog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from psycopg.pq import TransactionStatus

from twofold.errors import Refused
from twofold.source.catalog import unique_keys
from twofold.source.connection import PlainConnection
from twofold.source.messages import Relation
from twofold.source.published_tables import DescribedTable, describe_filters
from twofold_common.table_names import sql_identifier, table_argument

# Not pg_partition_tree(): it locks the tables that it names. Before 18 no constraint is NOT NULL,
# and none of these is NOT VALID.
_IDENTITIES = """
WITH RECURSIVE tree AS (
    SELECT oid AS published, oid FROM unnest(%s::oid[]) oid
    UNION ALL
    SELECT tree.published, i.inhrelid FROM tree JOIN pg_catalog.pg_inherits i ON i.inhparent = tree.oid
      JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid AND c.relispartition
)
SELECT tree.published::bigint, c.oid::bigint, n.nspname::text, c.relname::text, c.relkind::text, c.relpersistence::text,
       c.relreplident::text,
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum = ANY (identity.attnums) ORDER BY a.attnum),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum = ANY (identity.attnums) AND a.attgenerated <> ''),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_attribute a
              WHERE a.attrelid = c.oid AND a.attnum = ANY (identity.attnums)
                AND EXISTS (SELECT FROM pg_catalog.pg_constraint t
                             WHERE t.conrelid = c.oid AND t.contype = 'n' AND NOT t.convalidated AND t.conkey = ARRAY[a.attnum])),
       ARRAY(SELECT a.attname::text FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a
                 ON a.attrelid = c.oid AND a.attnum = ANY ((i.indkey::smallint[])[0:i.indnkeyatts - 1])
              WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate AND i.indisvalid)
  FROM tree
  JOIN pg_catalog.pg_class c ON c.oid = tree.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN LATERAL (
       SELECT (i.indkey::smallint[])[0:i.indnkeyatts - 1] AS attnums
         FROM pg_catalog.pg_index i
        WHERE i.indrelid = c.oid
          AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN i.indisprimary AND i.indimmediate
                             AND (i.indisvalid OR c.relkind = 'p' AND current_setting('server_version_num')::int >= 180000) END
       ) identity ON true
 ORDER BY 3, 4
"""


@dataclass(frozen=True, slots=True)
class TableFlaw:
    """A published table that cannot be followed."""

    schema: str
    table: str
    what: str
    at_stake: str
    repair: tuple[str, ...]
    """Statements for the table's owner, in their order."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """A published table, or a partition of one, as the catalog has it."""

    published: int
    oid: int
    schema: str
    table: str
    kind: str
    persistence: str
    replica_identity: str
    identity: tuple[str, ...]
    generated: frozenset[str]
    """The columns of the identity that are generated."""
    may_be_null: frozenset[str]
    """The columns of the identity that are NOT NULL for new rows alone."""
    primary: frozenset[str]


@dataclass(slots=True)
class _Finder:
    """The checks of one publication, in one session."""

    connection: PlainConnection
    publication: str
    version: int = field(init=False)

    def __post_init__(self) -> None:
        self.version = self.connection.info.server_version

    def of_table(self, described: DescribedTable, stored: list[_Stored]) -> Iterator[TableFlaw]:
        relation = described.relation
        own = next((each for each in stored if each.oid == relation.oid), None)
        if own is None:
            return  # dropped, and described from PostgreSQL's caches, which are ahead of the snapshot
        leaves = [each for each in stored if each.kind == "r"]
        yield from self._unlogged(relation, leaves)
        if relation.replica_identity in {"default", "index"}:
            yield from self._incomplete_key(described, own)
            yield from self._null_in_key(own)
        if described.partitioned:
            key = self._message_key(relation)
            yield from (flaw for leaf in leaves if (flaw := self._uncovered(relation, key, leaf)))

    def _unlogged(self, relation: Relation, leaves: Iterable[_Stored]) -> Iterator[TableFlaw]:
        for leaf in leaves:
            if leaf.persistence != "p":
                yield TableFlaw(
                    relation.schema,
                    relation.table,
                    f"partition {leaf.schema}.{leaf.table} is UNLOGGED",
                    "its rows would be loaded, and their changes never come, because they are not in the WAL",
                    (f"ALTER TABLE {self._name(leaf)} SET LOGGED;",),
                )

    def _incomplete_key(self, described: DescribedTable, own: _Stored) -> Iterator[TableFlaw]:
        relation = described.relation
        published = {column.name for column in relation.columns}
        missing = [name for name in own.identity if name not in published]
        # Without any column of the key only inserts come, because PostgreSQL refuses UPDATE and
        # DELETE: the table has no message key then. Before 18 it permits them if the column is
        # generated.
        changes_come = self.version < 180000 and bool(own.generated.intersection(missing))
        if missing and (changes_come or published.intersection(own.identity)):
            yield TableFlaw(
                own.schema,
                own.table,
                f"publication {self.publication} leaves out a column of its key: {', '.join(missing)}",
                "rows of different keys would come under one, and a reader by key would lose all but the last of them",
                self._publish_key(described, own, missing),
            )

    def _publish_key(self, described: DescribedTable, own: _Stored, missing: list[str]) -> tuple[str, ...]:
        publication = sql_identifier(self.publication)
        if own.generated.intersection(missing) and self.version < 180000:
            return (f"ALTER TABLE {self._name(own)} REPLICA IDENTITY FULL;",)
        if own.generated.intersection(missing) and not self._has_list(own):
            return (f"ALTER PUBLICATION {publication} SET (publish_generated_columns = stored);",)
        names = [column.name for column in described.relation.columns] + missing
        columns = ", ".join(sql_identifier(name) for name in names)
        where = f" WHERE ({described.row_filter})" if described.row_filter else ""
        return (
            f"ALTER PUBLICATION {publication} DROP TABLE {self._name(own)};",
            f"ALTER PUBLICATION {publication} ADD TABLE {self._name(own)} ({columns}){where};",
        )

    def _has_list(self, own: _Stored) -> bool:
        query = "SELECT FROM pg_catalog.pg_publication_rel r JOIN pg_catalog.pg_publication p ON p.oid = r.prpubid WHERE p.pubname = %s AND r.prrelid = %s AND r.prattrs IS NOT NULL"
        return self.connection.execute(query, (self.publication, own.oid)).fetchone() is not None

    def _null_in_key(self, own: _Stored) -> Iterator[TableFlaw]:
        if own.may_be_null:
            yield TableFlaw(
                own.schema,
                own.table,
                f"its replica identity has a column that may be null, because its NOT NULL is NOT VALID: {', '.join(sorted(own.may_be_null))}",
                "rows with a null there have no message key, and cannot be published",
                (f"ALTER TABLE {self._name(own)} REPLICA IDENTITY FULL;",),
            )

    def _message_key(self, relation: Relation) -> frozenset[str]:
        if relation.replica_identity == "full":
            keys = unique_keys(self.connection, relation.oid)
            names = {column.name for column in relation.columns}
            return next((key for key in keys if names.issuperset(key)), frozenset())
        return frozenset(column.name for column in relation.columns if column.in_identity)

    def _uncovered(self, root: Relation, key: frozenset[str], leaf: _Stored) -> TableFlaw | None:
        if leaf.replica_identity == "f" or covers(key, frozenset(leaf.identity)):
            return None
        identity = "DEFAULT" if covers(key, leaf.primary) and leaf.primary else "FULL"
        repair = f"ALTER TABLE {self._name(leaf)} REPLICA IDENTITY {identity};"
        return uncovered(root.schema, root.table, f"{leaf.schema}.{leaf.table}", key, (repair,))

    def _name(self, table: _Stored) -> str:
        return sql_identifier(table.schema, table.table)


def covers(key: frozenset[str], identity: frozenset[str]) -> bool:
    """Return whether a partition with this identity, not `full`, sends what its root needs: the
    root's message key, or without a key the whole old row. PostgreSQL refuses UPDATE and DELETE
    where there is no identity.
    """
    return not identity or (bool(key) and key <= identity)


def uncovered(schema: str, table: str, leaf: str, key: frozenset[str], repair: tuple[str, ...]) -> TableFlaw:
    """Describe the flaw of a partition whose identity does not cover its root's key."""
    needed = f"the message key ({', '.join(sorted(key))})" if key else "the whole old row"
    return TableFlaw(
        schema,
        table,
        f"partition {leaf} has a replica identity without {needed}",
        "its changes are published as the table's, and would replace other rows or none",
        repair,
    )


def find_flaws(connection: PlainConnection, publication: str) -> tuple[TableFlaw, ...]:
    """Return the flaws of the publication's present tables."""
    with _one_snapshot(connection):
        tables = describe_filters(connection, publication)
        rows = connection.execute(_IDENTITIES, ([table.relation.oid for table in tables],)).fetchall()
        stored: dict[int, list[_Stored]] = {}
        for *own, identity, generated, may_be_null, primary in rows:
            sets = map(frozenset, (generated, may_be_null, primary))
            each = _Stored(*[*own, tuple(identity), *sets])
            stored.setdefault(each.published, []).append(each)
        finder = _Finder(connection, publication)
        return tuple(flaw for table in tables for flaw in finder.of_table(table, stored.get(table.relation.oid, [])))


@contextmanager
def _one_snapshot(connection: PlainConnection) -> Iterator[None]:
    """Let all queries see one moment, because tables come and go meanwhile."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        yield  # within the transaction that tries a publication out
        return
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        yield
    finally:
        if not connection.closed:
            connection.rollback()


def refusal_of(flaws: Iterable[TableFlaw]) -> Refused:
    """Return the refusal of these tables, with one repair for all."""
    flaws = tuple(flaws)
    tables = dict.fromkeys(table_argument(flaw.schema, flaw.table) for flaw in flaws)
    statements = dict.fromkeys(statement for flaw in flaws for statement in flaw.repair)
    return Refused(
        "; ".join(f"table {flaw.schema}.{flaw.table}: {flaw.what}" for flaw in flaws),
        at_stake="; ".join(dict.fromkeys(flaw.at_stake for flaw in flaws)),
        repair=" ".join([*statements, *(["then"] if statements else []), "twofold backfill start", *tables]),
    )

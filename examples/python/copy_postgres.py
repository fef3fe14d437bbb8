"""Keep a copy of an account table in another PostgreSQL, exactly once and transaction by
transaction.

pip install twofold-reader psycopg
python copy_postgres.py 127.0.0.1:9092 http://127.0.0.1:8081 bank public.accounts "dbname=copy"

Kill it at any moment and start it again: rows and bookmark are stored in one transaction. Whoever
reads the copy sees a state that the source had.
"""

import signal
import sys

import psycopg

from twofold_reader import Reader

bootstrap, registry, prefix, table, conninfo = sys.argv[1:]
signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
with (
    psycopg.connect(conninfo) as database,
    Reader(prefix, {"bootstrap.servers": bootstrap}, registry, tables=[table]) as reader,
):
    database.execute("CREATE TABLE IF NOT EXISTS accounts (id bigint PRIMARY KEY, owner text, balance numeric(12, 2))")
    database.execute("CREATE TABLE IF NOT EXISTS bookmark (only_one int PRIMARY KEY, place text)")
    database.commit()
    found = database.execute("SELECT place FROM bookmark").fetchone()
    database.commit()
    for transaction in reader.transactions(found[0] if found else "beginning"):
        for change in transaction.changes:
            if change.op == "t":
                database.execute("TRUNCATE accounts")
            elif change.op == "d":
                database.execute("DELETE FROM accounts WHERE id = %(id)s", change.key)
            else:
                database.execute(
                    "INSERT INTO accounts VALUES (%(id)s, %(owner)s, %(balance)s)"
                    " ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, balance = excluded.balance",
                    change.after,
                )
        database.execute(
            "INSERT INTO bookmark VALUES (1, %s) ON CONFLICT (only_one) DO UPDATE SET place = excluded.place",
            [transaction.bookmark],
        )
        database.commit()
        print(transaction.position, flush=True)

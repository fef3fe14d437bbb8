"""Keep totals of an account table in SQLite, exactly once: whole transactions, and their bookmark.

pip install twofold-reader
python totals_sqlite.py 127.0.0.1:9092 http://127.0.0.1:8081 bank public.accounts totals.db

Kill it at any moment and start it again: the totals are those of the source as of the bookmark,
because both are stored in one transaction.
"""

import signal
import sqlite3
import sys

from twofold_reader import Reader

bootstrap, registry, prefix, table, file = sys.argv[1:]
database = sqlite3.connect(file, isolation_level=None)
database.execute("CREATE TABLE IF NOT EXISTS owner (id INTEGER PRIMARY KEY, name TEXT, balance TEXT)")
database.execute("CREATE TABLE IF NOT EXISTS bookmark (only_one INTEGER PRIMARY KEY, place TEXT)")
found = database.execute("SELECT place FROM bookmark").fetchone()
signal.signal(signal.SIGTERM, signal.default_int_handler)  # it ends as Ctrl-C does
with Reader(prefix, {"bootstrap.servers": bootstrap}, registry, tables=[table]) as reader:
    for transaction in reader.transactions(found[0] if found else "beginning"):
        database.execute("BEGIN IMMEDIATE")
        for change in transaction.changes:
            if change.op == "t":
                database.execute("DELETE FROM owner")
            elif change.op == "d":
                database.execute("DELETE FROM owner WHERE id = ?", [change.key["id"]])
            else:
                row = change.after
                database.execute("REPLACE INTO owner VALUES (?, ?, ?)", [row["id"], row["owner"], str(row["balance"])])
        database.execute("REPLACE INTO bookmark VALUES (1, ?)", [transaction.bookmark])
        database.execute("COMMIT")
        print(transaction.position, flush=True)

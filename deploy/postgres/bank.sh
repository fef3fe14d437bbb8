#!/bin/bash
# Run once by the postgres image, on an empty volume: the role the connector logs in with, and a small bank to watch.
# The role needs no more than REPLICATION, CREATE on the database and the ownership of the tables it publishes.
set -euo pipefail

psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    --set password="$(</run/secrets/postgres_twofold)" <<'SQL'
CREATE ROLE twofold LOGIN REPLICATION PASSWORD :'password';
CREATE DATABASE bank OWNER twofold;
SQL

psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname bank <<'SQL'
SET ROLE twofold;
CREATE TABLE accounts (
    id bigint PRIMARY KEY,
    owner text NOT NULL,
    balance numeric(12, 2) NOT NULL CHECK (balance >= 0)
);
CREATE TABLE transfers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    source bigint NOT NULL REFERENCES accounts,
    target bigint NOT NULL REFERENCES accounts,
    amount numeric(12, 2) NOT NULL CHECK (amount > 0),
    made_at timestamptz NOT NULL DEFAULT now()
);
SQL

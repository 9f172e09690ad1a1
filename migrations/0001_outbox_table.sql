-- The outbox table as applications know it, the columns of the relay beside theirs, and the small tables next to it.
--
-- Each step stands alone, may be run again, and takes no lock that stops writers for longer than the lock timeout: columns
-- are nullable or have a constant default (no rewrite), constraints are added NOT VALID and validated after, and indexes
-- are built CONCURRENTLY. Braces name what the program fills in.

-- step: create the table of the published pattern, unless the application has one
CREATE TABLE IF NOT EXISTS {table} (
    id              bigserial PRIMARY KEY,
    tenant_id       uuid NOT NULL,
    operation       text NOT NULL,
    entity_id       text NOT NULL,
    intent_version  integer NOT NULL DEFAULT 1,
    idempotency_key text NOT NULL,
    endpoint        text NOT NULL,
    payload         jsonb NOT NULL,
    status          text NOT NULL DEFAULT 'pending',
    attempts        integer NOT NULL DEFAULT 0,
    next_attempt_at timestamptz NOT NULL DEFAULT now(),
    locked_until    timestamptz,
    last_error      text,
    downstream_id   text,
    created_at      timestamptz NOT NULL DEFAULT now()
);

-- step: add the relay's own columns
ALTER TABLE {table}
    ADD COLUMN IF NOT EXISTS claim_token       uuid,
    ADD COLUMN IF NOT EXISTS claimed_by        text,
    ADD COLUMN IF NOT EXISTS waits             integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS unknown_attempts  integer NOT NULL DEFAULT 0,
    ADD COLUMN IF NOT EXISTS answered_5xx      boolean NOT NULL DEFAULT false,
    ADD COLUMN IF NOT EXISTS payload_hash      bytea,
    ADD COLUMN IF NOT EXISTS last_http_status  integer,
    ADD COLUMN IF NOT EXISTS reason            text,
    ADD COLUMN IF NOT EXISTS first_dispatch_at timestamptz,
    ADD COLUMN IF NOT EXISTS retry_since       timestamptz,
    ADD COLUMN IF NOT EXISTS completed_at      timestamptz,
    ADD COLUMN IF NOT EXISTS expires_at        timestamptz,
    ADD COLUMN IF NOT EXISTS headers           jsonb,
    ADD COLUMN IF NOT EXISTS destination       text;

-- step: keep the states to those that the relay knows
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = {table_literal}::regclass AND conname = 'outbox_status_known') THEN
        ALTER TABLE {table} ADD CONSTRAINT outbox_status_known CHECK
            (status IN ('pending', 'in_flight', 'succeeded', 'uncertain', 'dead', 'cancelled', 'superseded')) NOT VALID;
    END IF;
END
$do$;

-- step: check the rows that are there already (writers go on meanwhile)
ALTER TABLE {table} VALIDATE CONSTRAINT outbox_status_known;

-- step: create the table of live workers
CREATE TABLE IF NOT EXISTS {side_workers} (
    worker           text PRIMARY KEY,
    seen_at          timestamptz NOT NULL DEFAULT now(),
    slots            integer NOT NULL,
    in_hand          integer NOT NULL,
    completed        bigint NOT NULL,
    drain_per_second real
);

-- step: index {index_key} unique
CREATE UNIQUE INDEX CONCURRENTLY {index_key} ON {table} (idempotency_key);

-- step: make the unique index a constraint, so that a second insert of one intent names it
DO $do$
BEGIN
    IF EXISTS (
        SELECT FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
        WHERE i.indrelid = {table_literal}::regclass AND c.relname = {index_key_literal}
            AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = i.indexrelid)
    ) THEN
        ALTER TABLE {table} ADD CONSTRAINT {index_key} UNIQUE USING INDEX {index_key};
    END IF;
END
$do$;

-- The claim reads due rows in order; the lease is written into next_attempt_at, so an expired one is found here as well.
-- step: index {index_claim}
CREATE INDEX CONCURRENTLY {index_claim} ON {table} (next_attempt_at, id) WHERE status IN ('pending', 'in_flight', 'uncertain');

-- Dead rows are few and asked for by people and alerts.
-- step: index {index_dead}
CREATE INDEX CONCURRENTLY {index_dead} ON {table} (reason) WHERE status = 'dead';

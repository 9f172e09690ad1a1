-- What retention reads: rows that have ended in the order of their ends, and who cleans.

-- Rows from before the migration have no completed_at; they count from their insert. Nothing is in this index before it has
-- ended, so it costs an INSERT nothing and a settle one entry at the index's end (47 bytes a row).
-- step: index {index_ended}
CREATE INDEX CONCURRENTLY {index_ended} ON {table} (status, (coalesce(completed_at, created_at)), id) WHERE status IN ('succeeded', 'dead');

-- One row a relay: the pod that cleans, for how long, and up to which row payloads are replaced already.
-- step: create the table of cleaners
CREATE TABLE IF NOT EXISTS {side_cleaners} (
    relay              text PRIMARY KEY,
    worker             text NOT NULL,
    held_until         timestamptz NOT NULL,
    payloads_until     timestamptz NOT NULL DEFAULT '-infinity',
    payloads_until_id  bigint NOT NULL DEFAULT 0
);

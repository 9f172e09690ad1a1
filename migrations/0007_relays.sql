-- Who serves which tenants: one row for each process of a relay and one for the operator's look at it, by the database's
-- clock. A relay lives while one of its rows was written lately.

-- step: create the table of registered relays
CREATE TABLE IF NOT EXISTS {side_relays} (
    relay      text NOT NULL,
    holder     text NOT NULL,
    tenants    uuid[] NOT NULL,
    skips_dead boolean NOT NULL DEFAULT false,
    first_seen timestamptz NOT NULL DEFAULT now(),
    seen_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (relay, holder)
);

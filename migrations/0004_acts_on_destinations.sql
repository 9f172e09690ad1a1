-- Acts of people on destinations stand in the same history as those on rows: an audit asks one table.

-- An act on a destination has no row, so what names a row may be unset. Nothing is rewritten by this.
-- step: let the history record acts that are about no row
ALTER TABLE {side_history}
    ALTER COLUMN row_id DROP NOT NULL,
    ALTER COLUMN idempotency_key DROP NOT NULL,
    ALTER COLUMN tenant_id DROP NOT NULL,
    ALTER COLUMN operation DROP NOT NULL,
    ALTER COLUMN entity_id DROP NOT NULL,
    ADD COLUMN IF NOT EXISTS destination text,
    ADD COLUMN IF NOT EXISTS scope       text;

-- Beside the hold as well, so that whoever meets it need not search the history.
-- step: keep who holds a destination, and why
ALTER TABLE {side_destinations}
    ADD COLUMN IF NOT EXISTS held_by text,
    ADD COLUMN IF NOT EXISTS note    text;

-- Puts the next version in the place of a dead row that the transaction has locked.
WITH old AS MATERIALIZED (
    SELECT * FROM {table} WHERE id = $1 AND status = 'dead'
),
heir AS (
    INSERT INTO {table} (tenant_id, operation, entity_id, intent_version, idempotency_key, endpoint, payload, headers, expires_at)
    SELECT tenant_id, operation, entity_id, intent_version + 1, $2, coalesce($4, endpoint), coalesce($3::text::jsonb, payload),
           headers, coalesce(timestamptz 'epoch' + $5::bigint * interval '1 microsecond', expires_at)
    FROM old
    RETURNING id
),
retired AS (
    UPDATE {table} AS t
    SET status = 'superseded', completed_at = now()
    FROM old
    WHERE t.id = old.id
    RETURNING t.id
)
-- A second effect is possible where an attempt of the old row may have been executed: whoever revised it took that on.
INSERT INTO {history} (row_id, idempotency_key, tenant_id, operation, entity_id, act, attempt, worker, status_before,
                       outcome, reason, http_status, error, next_row_id, forced, actor, note)
SELECT old.id, left(old.idempotency_key, 2000), old.tenant_id, left(old.operation, 200), left(old.entity_id, 500), 'revise',
       old.attempts, current_user, 'dead', 'superseded', left(old.reason, 64), old.last_http_status, left(old.last_error, 500),
       heir.id, old.unknown_attempts > 0, left($6, 200), left($7, 1000)
FROM old
JOIN retired ON retired.id = old.id
CROSS JOIN heir
RETURNING next_row_id

-- One batch of an act of people. The act fills in braces: which state it moves, why it refuses, what it sets.
WITH chosen AS MATERIALIZED (
    -- Materialized, so that the limit is applied once. The lock makes the database read the row again after a claim or
    -- another person's act that was in progress, so what is judged here is what is changed below.
    SELECT t.id, t.idempotency_key, t.tenant_id, t.operation, t.entity_id, t.status, t.attempts, t.reason,
           t.last_http_status, t.last_error,
           CASE WHEN t.status <> '{from}' THEN 'state' {refusal} END AS refusal,
           {forced} AS forced
    FROM {table} AS t
    WHERE {conditions} AND t.id > $9
    ORDER BY t.id
    LIMIT $10
    FOR UPDATE {locking}
),
placed AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY id) - 1 AS position FROM chosen WHERE refusal IS NULL
),
moved AS (
    UPDATE {table} AS t
    SET {set},
        claim_token = NULL, claimed_by = NULL, locked_until = NULL
    FROM placed
    WHERE t.id = placed.id AND t.status = '{from}'
    RETURNING t.id, t.status
),
recorded AS (
    INSERT INTO {history} (row_id, idempotency_key, tenant_id, operation, entity_id, act, attempt, worker, status_before,
                           outcome, reason, http_status, error, forced, actor, filter, note)
    SELECT p.id, left(p.idempotency_key, 2000), p.tenant_id, left(p.operation, 200), left(p.entity_id, 500), '{act}',
           p.attempts, current_user, p.status, m.status, left(p.reason, 64), p.last_http_status, left(p.last_error, 500),
           p.forced, left($11, 200), left($12, 1000), left($13, 1000)
    FROM placed AS p
    JOIN moved AS m USING (id)
)
SELECT c.id, c.status, CASE WHEN c.refusal IS NULL AND m.id IS NULL THEN 'changed' ELSE c.refusal END AS refusal
FROM chosen AS c
LEFT JOIN moved AS m USING (id)
ORDER BY c.id

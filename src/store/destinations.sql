-- The next destinations after a cursor that have claimable rows, whether one is due, and what is known of each.
WITH RECURSIVE visited AS (
    -- A loose index scan: one probe of the index a destination, however many rows it has.
    (
        SELECT destination, next_attempt_at, 1 AS visit
        FROM {table}
        WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NOT NULL AND destination > $2
        ORDER BY destination, next_attempt_at, id
        LIMIT 1
    )
    UNION ALL
    (
        SELECT following.destination, following.next_attempt_at, visited.visit + 1
        FROM visited
        CROSS JOIN LATERAL (
            SELECT destination, next_attempt_at
            FROM {table}
            WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NOT NULL
              AND destination > visited.destination
            ORDER BY destination, next_attempt_at, id
            LIMIT 1
        ) AS following
        WHERE visited.visit < $3
    )
)
SELECT visited.destination,
       visited.next_attempt_at <= now() AS due,
       coalesce(known.failures, 0) AS failures,
       coalesce(known.holds, 0) AS holds,
       known.reason,
       known.held_until IS NOT NULL AS held,
       (extract(epoch FROM greatest(least(known.held_until, now() + interval '10 years') - now(), interval '0')) * 1000)::bigint AS left_ms,
       known.allowance,
       known.scope
FROM visited
LEFT JOIN {destinations} AS known ON known.scope = ANY ($1::text[]) AND known.destination = visited.destination
UNION ALL
-- Rows from before the trigger have no destination; they share one bucket that is never held.
SELECT NULL, true, 0, 0, NULL, false, 0, NULL, NULL
WHERE EXISTS (
    SELECT FROM {table}
    WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NULL AND next_attempt_at <= now()
)

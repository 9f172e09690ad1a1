-- Destinations that have claimable rows, whether one is due, where to look from the next time, and what is known of each.
WITH RECURSIVE {visited},
found AS (
    SELECT destination, next_attempt_at, id FROM visited
    UNION ALL
    -- Rows from before the trigger have no destination; they share one bucket that is never held.
    SELECT NULL, first.next_attempt_at, first.id
    FROM (VALUES (1)) AS nameless
    LEFT JOIN LATERAL (
        SELECT next_attempt_at, id
        FROM {table}
        WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NULL AND next_attempt_at <= now()
          AND (next_attempt_at, id) >= ({nameless_at}, $3::bigint)
        ORDER BY next_attempt_at, id
        LIMIT 1
    ) AS first ON true
)
SELECT found.destination,
       coalesce(found.next_attempt_at <= now(), false) AS due,
       -- A second back at least: an INSERT that began before this and is committed after it lies behind the place.
       CASE WHEN least(found.next_attempt_at, now() - interval '1 second') > 'epoch'
            THEN (extract(epoch FROM least(found.next_attempt_at, now() - interval '1 second')) * 1000000)::bigint
       END AS place_at,
       CASE WHEN found.next_attempt_at <= now() - interval '1 second' THEN found.id END AS place_id,
       coalesce(known.failures, 0) AS failures,
       coalesce(known.holds, 0) AS holds,
       known.reason,
       known.held_until IS NOT NULL AS held,
       (extract(epoch FROM greatest(least(known.held_until, now() + interval '10 years') - now(), interval '0')) * 1000)::bigint AS left_ms,
       known.allowance,
       known.scope
FROM found
LEFT JOIN {destinations} AS known ON known.scope = ANY ($1::text[]) AND known.destination = found.destination

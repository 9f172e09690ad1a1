-- Makes the first waiting row of each of these rows' entities due, if it was put off for the order's sake.
WITH ended AS MATERIALIZED (
    SELECT DISTINCT {entity} AS entity FROM {table} AS t WHERE t.id = ANY ($1::bigint[])
),
heads AS MATERIALIZED (
    SELECT head.id
    FROM ended
    CROSS JOIN LATERAL (
        SELECT {entity} AS entity, {rank} AS rank, t.id
        FROM {table} AS t
        WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
          AND ({entity}, {rank}, t.id) > (ended.entity, 1, (-9223372036854775808)::bigint)
        ORDER BY {entity}, {rank}, t.id
        LIMIT 1
    ) AS head
    WHERE head.entity = ended.entity AND head.rank = 1
),
-- In the order of the ids, so that two of these never wait for each other in a circle.
locked AS MATERIALIZED (
    SELECT t.id FROM {table} AS t WHERE t.id IN (SELECT id FROM heads) ORDER BY t.id FOR UPDATE
)
UPDATE {table} AS t
SET next_attempt_at = now()
FROM locked
WHERE t.id = locked.id AND t.status IN ('pending', 'uncertain') AND t.reason LIKE 'waits for row %'
  AND t.next_attempt_at > now() AND t.next_attempt_at < 'infinity'
RETURNING t.id

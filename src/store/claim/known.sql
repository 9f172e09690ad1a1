-- Known destinations, each from its place on, and no further than what is due: entries of rows that have passed lie on both
-- sides.
remembered AS MATERIALIZED (
    SELECT destination, {place_at} AS at, id FROM unnest($4::text[], $5::bigint[], $6::bigint[]) AS r (destination, at, id)
),
visited AS (
    SELECT remembered.destination, first.next_attempt_at, first.id
    FROM remembered
    LEFT JOIN LATERAL (
        SELECT t.next_attempt_at, t.id
        FROM {table} AS t
        WHERE t.status IN ('pending', 'in_flight', 'uncertain') AND t.destination = remembered.destination
          AND t.next_attempt_at <= now() AND (t.next_attempt_at, t.id) >= (remembered.at, remembered.id)
        ORDER BY t.next_attempt_at, t.id
        LIMIT 1
    ) AS first ON true
)

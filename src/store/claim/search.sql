-- The next destinations after a cursor, by a loose index scan: one probe of the index a destination, however many rows it has.
visited AS (
    (
        SELECT destination, next_attempt_at, id, 1 AS visit
        FROM {table}
        WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NOT NULL AND destination > $4
        ORDER BY destination, next_attempt_at, id
        LIMIT 1
    )
    UNION ALL
    (
        SELECT following.destination, following.next_attempt_at, following.id, visited.visit + 1
        FROM visited
        CROSS JOIN LATERAL (
            SELECT destination, next_attempt_at, id
            FROM {table}
            WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NOT NULL
              AND destination > visited.destination
            ORDER BY destination, next_attempt_at, id
            LIMIT 1
        ) AS following
        WHERE visited.visit < $5
    )
)

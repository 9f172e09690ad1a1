-- The rows by destination, with a first line over all of them. Each source is read up to $4 rows.
WITH seen AS (
    (
        SELECT {destination} AS destination, t.next_attempt_at,
               CASE WHEN t.next_attempt_at <= now() THEN 'due'
                    WHEN t.status = 'pending' THEN 'waiting'
                    WHEN t.status = 'in_flight' THEN 'in_flight'
                    WHEN t.next_attempt_at = 'infinity' THEN 'uncertain_parked'
                    ELSE 'uncertain_auto' END AS state
        FROM {table} AS t
        WHERE t.status IN ('pending', 'in_flight', 'uncertain') AND {scope}
        LIMIT $4
    )
    UNION ALL
    (
        SELECT {destination}, NULL, 'dead'
        FROM {table} AS t
        WHERE t.status = 'dead' AND {scope}
        LIMIT $4
    )
    UNION ALL
    (
        -- What has ended well is asked for one entity only: there is no index over the whole of it.
        SELECT {destination}, NULL, t.status
        FROM {table} AS t
        WHERE $3 IS NOT NULL AND t.status IN ('succeeded', 'cancelled', 'superseded') AND {scope}
        LIMIT $4
    )
)
SELECT destination,
       count(*) FILTER (WHERE state = 'due')              AS due,
       count(*) FILTER (WHERE state = 'waiting')          AS waiting,
       count(*) FILTER (WHERE state = 'in_flight')        AS in_flight,
       count(*) FILTER (WHERE state = 'uncertain_auto')   AS uncertain_auto,
       count(*) FILTER (WHERE state = 'uncertain_parked') AS uncertain_parked,
       count(*) FILTER (WHERE state = 'dead')             AS dead,
       count(*) FILTER (WHERE state = 'succeeded')        AS succeeded,
       count(*) FILTER (WHERE state = 'cancelled')        AS cancelled,
       count(*) FILTER (WHERE state = 'superseded')       AS superseded,
       extract(epoch FROM now() - min(next_attempt_at) FILTER (WHERE state = 'due' AND isfinite(next_attempt_at)))::bigint
           AS oldest_due_s
FROM seen
GROUP BY GROUPING SETS ((), (destination))
ORDER BY grouping(destination) DESC,
         count(*) FILTER (WHERE state IN ('dead', 'uncertain_parked')) DESC,
         count(*) FILTER (WHERE state = 'due') DESC,
         count(*) DESC,
         destination
LIMIT $5 + 1

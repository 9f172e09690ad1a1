-- Due rows of some destinations, so many of each, from a place on.
share AS MATERIALIZED (
    SELECT destination, quota, {place_at} AS at, place_id
    FROM unnest($1::text[], $2::bigint[], $5::bigint[], $6::bigint[]) AS s (destination, quota, at, place_id)
),
due AS MATERIALIZED (
    -- Materialized, so that the limits are applied once: as a plain sub-select a nested loop may run it again and lease far
    -- more. A row that an old-pattern relay holds (in flight without a token) is not due before its own lease is over.
    SELECT taken.*
    FROM share
    CROSS JOIN LATERAL (
        SELECT id,
               status = 'in_flight' AS lease_expired,
               status = 'uncertain' AS in_doubt,
               first_dispatch_at IS NULL AS first_dispatch
        FROM {table}
        WHERE status IN ('pending', 'in_flight', 'uncertain')
          AND destination = share.destination
          AND next_attempt_at <= now()
          AND (next_attempt_at, id) >= (share.at, share.place_id)
          AND (status <> 'in_flight' OR claim_token IS NOT NULL OR locked_until IS NULL OR locked_until <= now())
          AND ($3::uuid[] IS NULL OR tenant_id = ANY ($3))
        ORDER BY next_attempt_at, id
        LIMIT share.quota
        FOR UPDATE SKIP LOCKED
    ) AS taken
    UNION ALL
    SELECT nameless.*
    FROM (
        SELECT id, status = 'in_flight', status = 'uncertain', first_dispatch_at IS NULL
        FROM {table}
        WHERE status IN ('pending', 'in_flight', 'uncertain')
          AND destination IS NULL
          AND next_attempt_at <= now()
          AND (next_attempt_at, id) >= ({nameless_at}, $8::bigint)
          AND (status <> 'in_flight' OR claim_token IS NOT NULL OR locked_until IS NULL OR locked_until <= now())
          AND ($3::uuid[] IS NULL OR tenant_id = ANY ($3))
        ORDER BY next_attempt_at, id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) AS nameless
)

-- Judges rows of ordered policies that this transaction has locked: which of them have to wait, and for whom. Those that do
-- are put off; they use no attempt.
--
-- Every probe is one step into the index of the order: comparing whole index rows, rather than columns, leaves the database
-- no other index to read. Two entities with one hash would be ordered together, which harms neither.
WITH met AS MATERIALIZED (
    SELECT t.id, {entity} AS entity, m.dead_blocks
    FROM unnest($1::bigint[], $2::boolean[]) AS m (id, dead_blocks)
    JOIN {table} AS t ON t.id = m.id
    WHERE t.id = ANY ($1)
),
judged AS MATERIALIZED (
    SELECT met.id, met.dead_blocks, coalesce(moving.id, held.id, dead.id) AS blocker,
           -- Whether the blocker itself waits for nobody that moves: then its end is this row's turn.
           moving.id IS NULL OR (held.id IS NULL AND first.id = moving.id) AS near
    FROM met
    -- An earlier row that a worker holds; or a later one, while its lease runs: it was there first, by a late commit or a
    -- replay. (One whose lease is over waits for us.)
    LEFT JOIN LATERAL (
        SELECT t.id
        FROM {table} AS t
        WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead') AND {entity} = met.entity AND {rank} = 0
          AND (t.id < met.id OR (t.id > met.id AND t.locked_until > now()))
        LIMIT 1
    ) AS held ON true
    LEFT JOIN LATERAL (
        SELECT x.id
        FROM (
            SELECT {entity} AS entity, {rank} AS rank, t.id
            FROM {table} AS t
            WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead') AND ({entity}, {rank}, t.id) < (met.entity, 1, met.id)
            ORDER BY {entity} DESC, {rank} DESC, t.id DESC
            LIMIT 1
        ) AS x
        WHERE x.entity = met.entity AND x.rank = 1
    ) AS moving ON true
    LEFT JOIN LATERAL (
        SELECT x.id
        FROM (
            SELECT {entity} AS entity, {rank} AS rank, t.id
            FROM {table} AS t
            WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
              AND ({entity}, {rank}, t.id) > (met.entity, 1, (-9223372036854775808)::bigint)
            ORDER BY {entity}, {rank}, t.id
            LIMIT 1
        ) AS x
        WHERE x.entity = met.entity AND x.rank = 1
    ) AS first ON true
    LEFT JOIN LATERAL (
        SELECT x.id
        FROM (
            SELECT {entity} AS entity, {rank} AS rank, t.id
            FROM {table} AS t
            WHERE met.dead_blocks AND t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
              AND ({entity}, {rank}, t.id) < (met.entity, 2, met.id)
            ORDER BY {entity} DESC, {rank} DESC, t.id DESC
            LIMIT 1
        ) AS x
        WHERE x.entity = met.entity AND x.rank = 2
    ) AS dead ON true
),
put_off AS (
    UPDATE {table} AS t
    SET next_attempt_at  = now() + CASE WHEN j.near THEN $3 ELSE $4 END * interval '1 microsecond',
        reason           = 'waits for row ' || j.blocker,
        -- Its worker is gone, and the attempt's outcome is unknown, as if the row had been claimed.
        status           = CASE WHEN t.status = 'in_flight' THEN 'uncertain' ELSE t.status END,
        unknown_attempts = t.unknown_attempts + (t.status = 'in_flight')::integer,
        last_dispatch_at = CASE WHEN t.status = 'in_flight' THEN least(coalesce(t.locked_until, now()), now())
                                ELSE t.last_dispatch_at END,
        claim_token      = NULL,
        claimed_by       = NULL,
        locked_until     = NULL
    FROM judged AS j
    WHERE t.id = j.id AND t.id = ANY ($1) AND j.blocker IS NOT NULL
    RETURNING t.id
)
SELECT j.id, j.blocker, j.near, j.dead_blocks
FROM judged AS j

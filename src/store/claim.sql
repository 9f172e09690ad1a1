-- Claims due rows of some destinations for one worker: committed before any byte leaves.
WITH share AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::bigint[]) AS s (destination, quota)
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
          AND (status <> 'in_flight' OR claim_token IS NOT NULL OR locked_until IS NULL OR locked_until <= now())
          AND ($3::uuid[] IS NULL OR tenant_id = ANY ($3))
        ORDER BY next_attempt_at, id
        LIMIT $4
        FOR UPDATE SKIP LOCKED
    ) AS nameless
)
-- The lease is written into next_attempt_at too, so that an expired one is due by itself. The hash is kept before the
-- first byte leaves, so that a payload edited later is not sent under the old key unnoticed. A payload that is large where
-- it is stored is not touched here: it is loaded, and its hash kept, when its turn comes.
UPDATE {table} AS t
SET status            = 'in_flight',
    attempts          = t.attempts + 1,
    unknown_attempts  = t.unknown_attempts + due.lease_expired::integer,
    claim_token       = $5,
    claimed_by        = $6,
    locked_until      = now() + $7 * interval '1 microsecond',
    next_attempt_at   = now() + $7 * interval '1 microsecond',
    retry_since       = coalesce(t.retry_since, now()),
    first_dispatch_at = coalesce(t.first_dispatch_at, now()),
    payload_hash      = CASE WHEN t.payload_hash IS NULL AND pg_column_size(t.payload) <= $8
                             THEN sha256(convert_to(t.payload::text, 'UTF8')) ELSE t.payload_hash END
FROM due
-- The array says to the planner that these are few. Without it, it takes a tenth of the table's due rows for granted, since
-- it cannot know the limits, and reads the whole primary key (measured: 870 ms with a million rows, 1 ms with the array).
WHERE t.id = due.id
  AND t.id = ANY (ARRAY (SELECT id FROM due))
RETURNING t.id,
          t.destination,
          t.tenant_id::text AS tenant,
          t.operation,
          t.entity_id,
          t.idempotency_key,
          t.endpoint,
          CASE WHEN pg_column_size(t.payload) <= $8 THEN (
              SELECT CASE WHEN octet_length(small.body) <= $9 THEN small.body END
              FROM (SELECT t.payload::text AS body OFFSET 0) AS small
          ) END AS payload,
          t.payload_hash,
          t.headers::text AS headers,
          t.attempts,
          t.unknown_attempts,
          due.lease_expired,
          due.in_doubt,
          due.first_dispatch,
          t.answered_5xx,
          coalesce(t.expires_at <= now(), false) AS expired,
          (extract(epoch FROM now() - t.retry_since) * 1000)::bigint AS retry_age_ms,
          (extract(epoch FROM now() - t.first_dispatch_at) * 1000)::bigint AS dispatch_age_ms,
          (extract(epoch FROM now() - t.created_at) * 1000)::bigint AS age_ms,
          (extract(epoch FROM now()) * 1000)::bigint AS claimed_at_ms

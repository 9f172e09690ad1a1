-- Writes what became of claimed rows. The token fences: a worker that lost its lease changes nothing.
WITH settled AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bigint[], $2::uuid[], $3::text[], $4::bigint[], $5::boolean[], $6::text[], $7::text[], $8::integer[],
                $9::text[], $10::boolean[], $11::boolean[], $12::boolean[], $13::boolean[], $14::boolean[], $15::boolean[],
                $16::boolean[], $17::text[], $18::integer[], $19::bigint[])
        AS s (id, token, status, delay_us, parked, reason, last_error, http_status, downstream_id,
              give_back, wait, unknown, clear_first_dispatch, clear_retry_since, answered_5xx, sent,
              recorded_outcome, attempt, duration_ms)
),
changed AS (
    UPDATE {table} AS t
    SET status            = s.status,
        next_attempt_at   = CASE WHEN s.parked THEN 'infinity'
                                 WHEN s.delay_us IS NOT NULL THEN now() + s.delay_us * interval '1 microsecond'
                                 ELSE t.next_attempt_at END,
        locked_until      = NULL,
        claim_token       = NULL,
        claimed_by        = NULL,
        attempts          = t.attempts - s.give_back::integer,
        waits             = t.waits + s.wait::integer,
        unknown_attempts  = t.unknown_attempts + s.unknown::integer,
        answered_5xx      = t.answered_5xx OR s.answered_5xx,
        reason            = s.reason,
        last_error        = s.last_error,
        last_http_status  = coalesce(s.http_status, t.last_http_status),
        downstream_id     = coalesce(s.downstream_id, t.downstream_id),
        first_dispatch_at = CASE WHEN s.clear_first_dispatch THEN NULL ELSE t.first_dispatch_at END,
        last_dispatch_at  = CASE WHEN s.sent THEN now() ELSE t.last_dispatch_at END,
        retry_since       = CASE WHEN s.clear_retry_since THEN NULL ELSE t.retry_since END,
        completed_at      = CASE WHEN s.status IN ('succeeded', 'dead') THEN now() END
    FROM settled AS s
    WHERE t.id = s.id AND t.claim_token = s.token AND t.status = 'in_flight'
    RETURNING t.id, t.idempotency_key, t.tenant_id, t.operation, t.entity_id, s.attempt, s.recorded_outcome, s.reason,
              s.http_status, s.duration_ms, s.last_error
),
-- What an audit asks of an attempt, in the same transaction as its outcome.
recorded AS (
    INSERT INTO {history} (row_id, idempotency_key, tenant_id, operation, entity_id, act, attempt, worker, status_before,
                           outcome, reason, http_status, duration_ms, error)
    SELECT id, idempotency_key, tenant_id, operation, entity_id, 'attempt', attempt, $20, 'in_flight',
           recorded_outcome, reason, http_status, duration_ms, last_error
    FROM changed
    WHERE recorded_outcome IS NOT NULL
)
SELECT id FROM changed

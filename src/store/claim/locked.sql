-- Rows that this transaction has locked already.
due AS MATERIALIZED (
    SELECT id,
           status = 'in_flight' AS lease_expired,
           status = 'uncertain' AS in_doubt,
           first_dispatch_at IS NULL AS first_dispatch
    FROM {table}
    WHERE id = ANY ($1::bigint[]) AND status IN ('pending', 'in_flight', 'uncertain')
)

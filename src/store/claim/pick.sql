-- Locks due rows of destinations for one policy each, and takes the locks of their entities where the policy has an order.
WITH share AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::boolean[], $5::boolean[])
        AS s (destination, policy, quota, alone, ordered)
),
picked AS MATERIALIZED (
    -- All rows of the destination are the policy's.
    SELECT taken.id, share.destination, share.policy, share.ordered, taken.next_attempt_at, taken.entity_id, taken.tenant_id
    FROM share
    CROSS JOIN LATERAL (
        SELECT t.id, t.next_attempt_at, t.entity_id, t.tenant_id
        FROM {table} AS t
        WHERE t.destination = share.destination AND {due}
        ORDER BY t.next_attempt_at, t.id
        LIMIT share.quota
        FOR UPDATE SKIP LOCKED
    ) AS taken
    WHERE share.alone AND share.destination IS NOT NULL
    UNION ALL
    -- Other policies' rows lie between: as many of the first due ones are read as {window}, and the policy's own kept.
    SELECT taken.id, share.destination, share.policy, share.ordered, taken.next_attempt_at, taken.entity_id, taken.tenant_id
    FROM share
    CROSS JOIN LATERAL (
        SELECT t.id, t.next_attempt_at, t.entity_id, t.tenant_id
        FROM {table} AS t
        WHERE t.id = ANY (ARRAY(
                SELECT w.id
                FROM (
                    SELECT t.id, t.next_attempt_at, {policy} AS policy
                    FROM {table} AS t
                    WHERE t.destination = share.destination AND {due}
                    ORDER BY t.next_attempt_at, t.id
                    LIMIT {window}
                ) AS w
                WHERE w.policy = share.policy
                ORDER BY w.next_attempt_at, w.id
                LIMIT share.quota
            ))
          AND {due}
        FOR UPDATE SKIP LOCKED
    ) AS taken
    WHERE NOT share.alone AND share.destination IS NOT NULL
    UNION ALL
    SELECT taken.id, share.destination, share.policy, share.ordered, taken.next_attempt_at, taken.entity_id, taken.tenant_id
    FROM share
    CROSS JOIN LATERAL (
        SELECT t.id, t.next_attempt_at, t.entity_id, t.tenant_id
        FROM {table} AS t
        WHERE t.destination IS NULL AND {due} AND {policy} = share.policy
        ORDER BY t.next_attempt_at, t.id
        LIMIT share.quota
        FOR UPDATE SKIP LOCKED
    ) AS taken
    WHERE share.destination IS NULL
)
SELECT t.id, t.destination, t.policy, t.ordered, CASE WHEN t.ordered THEN {lock} ELSE true END AS ours
FROM picked AS t
ORDER BY t.next_attempt_at, t.id

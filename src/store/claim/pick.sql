-- Locks due rows of destinations for one policy each, and takes the locks of their entities where the policy has an order.
WITH share AS MATERIALIZED (
    SELECT destination, policy, quota, alone, ordered, {place_at} AS at, place_id
    FROM unnest($1::text[], $2::integer[], $3::bigint[], $4::boolean[], $5::boolean[], $7::bigint[], $8::bigint[])
        AS s (destination, policy, quota, alone, ordered, at, place_id)
),
-- Where other policies' rows lie between, as many due rows are read as {window}, and the policy's own kept.
windows AS MATERIALIZED (
    SELECT share.destination, share.policy, share.ordered, w.ids, w.last_at, w.last_id
    FROM share
    CROSS JOIN LATERAL (
        SELECT array_agg(n.id) FILTER (WHERE n.own AND n.owns <= share.quota) AS ids,
               max(n.next_attempt_at) FILTER (WHERE n.number = {window} AND n.owns < share.quota) AS last_at,
               max(n.id) FILTER (WHERE n.number = {window} AND n.owns < share.quota) AS last_id
        FROM (
            SELECT r.id, r.next_attempt_at, r.own,
                   count(*) FILTER (WHERE r.own) OVER so_far AS owns,
                   row_number() OVER so_far AS number
            FROM (
                SELECT t.id, t.next_attempt_at, {policy} = share.policy AS own
                FROM {table} AS t
                WHERE t.destination = share.destination AND {due} AND {behind}
                ORDER BY t.next_attempt_at, t.id
                LIMIT {window}
            ) AS r
            WINDOW so_far AS (ORDER BY r.next_attempt_at, r.id ROWS UNBOUNDED PRECEDING)
        ) AS n
    ) AS w
    WHERE NOT share.alone AND share.destination IS NOT NULL
),
picked AS MATERIALIZED (
    -- All rows of the destination are the policy's.
    SELECT taken.id, share.destination, share.policy, share.ordered, taken.next_attempt_at, taken.entity_id, taken.tenant_id
    FROM share
    CROSS JOIN LATERAL (
        SELECT t.id, t.next_attempt_at, t.entity_id, t.tenant_id
        FROM {table} AS t
        WHERE t.destination = share.destination AND {due} AND {behind}
        ORDER BY t.next_attempt_at, t.id
        LIMIT share.quota
        FOR UPDATE SKIP LOCKED
    ) AS taken
    WHERE share.alone AND share.destination IS NOT NULL
    UNION ALL
    SELECT taken.id, windows.destination, windows.policy, windows.ordered, taken.next_attempt_at, taken.entity_id, taken.tenant_id
    FROM windows
    CROSS JOIN LATERAL (
        SELECT t.id, t.next_attempt_at, t.entity_id, t.tenant_id
        FROM {table} AS t
        WHERE t.id = ANY (windows.ids) AND {due}
        FOR UPDATE SKIP LOCKED
    ) AS taken
    UNION ALL
    SELECT taken.id, share.destination, share.policy, share.ordered, taken.next_attempt_at, taken.entity_id, taken.tenant_id
    FROM share
    CROSS JOIN LATERAL (
        SELECT t.id, t.next_attempt_at, t.entity_id, t.tenant_id
        FROM {table} AS t
        WHERE t.destination IS NULL AND {due} AND {policy} = share.policy AND {behind}
        ORDER BY t.next_attempt_at, t.id
        LIMIT share.quota
        FOR UPDATE SKIP LOCKED
    ) AS taken
    WHERE share.destination IS NULL
)
SELECT *
FROM (
    SELECT t.id, t.destination, t.policy, t.ordered, CASE WHEN t.ordered THEN {lock} ELSE true END AS ours, t.next_attempt_at,
           NULL::bigint AS read_to
    FROM picked AS t
    UNION ALL
    -- The last row that was read, where a whole window held fewer of the policy's own than were looked for.
    SELECT w.last_id, w.destination, w.policy, w.ordered, true, w.last_at, (extract(epoch FROM w.last_at) * 1000000)::bigint
    FROM windows AS w
    WHERE w.last_at > 'epoch'
) AS found
ORDER BY next_attempt_at, id

-- One batch of rows past their age, from a cursor on. How many rows are looked at is bounded, whosever they are, so that the
-- rows of other tenants cost no more than ours.
WITH seen AS MATERIALIZED (
    SELECT id, {ended} AS ended, ($4::uuid[] IS NULL OR tenant_id = ANY ($4)) AS ours
    FROM {rows}
    WHERE {which}
      AND {ended} < now() - $1 * interval '1 microsecond'
      AND ({ended}, id) > ($2::timestamptz, $3)
    ORDER BY {ended}, id
    LIMIT $5
),
-- A row that somebody works on is left for the next sweep, as is one that others wait for.
free AS MATERIALIZED (
    SELECT id
    FROM {rows} AS r
    WHERE id = ANY (ARRAY(SELECT id FROM seen WHERE ours)) AND {which} AND NOT {kept}
    {lock}
),
removed AS (
    {remove}
    RETURNING 1
)
SELECT ended::text AS ended,
       id,
       (SELECT count(*) FROM seen) AS seen,
       (SELECT count(*) FROM removed) AS removed
FROM seen
ORDER BY seen.ended DESC, id DESC
LIMIT 1

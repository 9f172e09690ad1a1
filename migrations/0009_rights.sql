-- Rights on the tables that came after the first version, and two waits that had no end.

-- Whoever works with the table of workers works with these as well: a role that is not their owner needs no GRANT after an
-- upgrade. A role that migrates and may not grant leaves it to the owner; a relay names what it lacks at its start.
-- step: give the roles that have rights on the table of workers the same on the newer tables
DO $do$
DECLARE
    held record;
    side text;
BEGIN
    FOR held IN
        SELECT DISTINCT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END AS role, a.privilege_type AS "right"
        FROM pg_class AS c CROSS JOIN LATERAL aclexplode(c.relacl) AS a
        WHERE c.oid = {side_workers_literal}::regclass AND a.grantee <> c.relowner
          AND a.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        FOREACH side IN ARRAY ARRAY[{side_cleaners_literal}, {side_relays_literal}] LOOP
            EXECUTE format('GRANT %s ON %s TO %s', held."right", side, held.role);
        END LOOP;
    END LOOP;
EXCEPTION
    WHEN insufficient_privilege THEN RAISE WARNING 'cannot grant the rights on %: %', side, SQLERRM;
END
$do$;

-- A sweep that replaces payloads goes on where the last one ended, for these tenants.
-- step: add whose payloads are replaced
ALTER TABLE {side_cleaners} ADD COLUMN IF NOT EXISTS tenants uuid[];

-- It fails nobody's statement, and holds none up for longer than a moment: a row that is not made due is looked at again in
-- its time.
-- step: bound the wait of the function that makes the next row of an entity due
CREATE OR REPLACE FUNCTION {function_wake_next}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '250ms'
AS $function$
#variable_conflict use_column
DECLARE
    wanted bigint := hashtextextended(NEW.entity_id, uuid_hash_extended(NEW.tenant_id, 0));
    head bigint;
BEGIN
    SELECT x.id INTO head
    FROM (
        SELECT hashtextextended(t.entity_id, uuid_hash_extended(t.tenant_id, 0)) AS entity,
               (CASE t.status WHEN 'in_flight' THEN 0 WHEN 'dead' THEN 2 ELSE 1 END) AS rank, t.id
        FROM {table} AS t
        WHERE t.status IN ('pending', 'in_flight', 'uncertain', 'dead')
          AND (hashtextextended(t.entity_id, uuid_hash_extended(t.tenant_id, 0)),
               (CASE t.status WHEN 'in_flight' THEN 0 WHEN 'dead' THEN 2 ELSE 1 END), t.id)
              > (wanted, 1, (-9223372036854775808)::bigint)
        ORDER BY hashtextextended(t.entity_id, uuid_hash_extended(t.tenant_id, 0)),
                 (CASE t.status WHEN 'in_flight' THEN 0 WHEN 'dead' THEN 2 ELSE 1 END), t.id
        LIMIT 1
    ) AS x
    WHERE x.entity = wanted AND x.rank = 1;
    IF head IS NOT NULL THEN
        PERFORM FROM {table} AS t WHERE t.id = head FOR UPDATE;
        UPDATE {table} AS t SET next_attempt_at = now()
        WHERE t.id = head AND t.status IN ('pending', 'uncertain') AND t.reason LIKE 'waits for row %'
          AND t.next_attempt_at > now() AND t.next_attempt_at < 'infinity';
    END IF;
    RETURN NULL;
EXCEPTION
    WHEN deadlock_detected OR lock_not_available OR serialization_failure OR undefined_column OR undefined_table
        OR undefined_function OR insufficient_privilege THEN RETURN NULL;
END
$function$;

-- Order: the index by which a row finds the rows of its entity before it, and what makes the next one due.

-- A hash of tenant and entity in the place of both: entries are short, and no long entity can make an INSERT fail by it. The
-- state stands between, so that each question is one step into the index: who holds a row of the entity (0), which row waits
-- before this one (1), which one died before it (2).
-- step: index {index_order}
CREATE INDEX CONCURRENTLY {index_order} ON {table} (
    (hashtextextended(entity_id, uuid_hash_extended(tenant_id, 0))),
    (CASE status WHEN 'in_flight' THEN 0 WHEN 'dead' THEN 2 ELSE 1 END),
    id
) WHERE status IN ('pending', 'in_flight', 'uncertain', 'dead');

-- What people, producers and statements by hand end: a relay does this itself for the rows that it settles, which come from
-- in_flight and never get here, so that a table without order pays nothing. The next row is locked first, also where it is
-- due as it is: no claim shall meet it, and put it off, before the transaction that frees it has ended. It fails nobody's
-- statement: a row that is not made due is looked at again in its time.
-- step: create the function that makes the next row of an entity due
CREATE OR REPLACE FUNCTION {function_wake_next}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
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
    WHEN deadlock_detected OR lock_not_available OR undefined_column OR insufficient_privilege THEN RETURN NULL;
END
$function$;

-- step: make the next row due when a row is ended by anybody but its worker
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = {table_literal}::regclass AND tgname = 'outbox_wake_next') THEN
        CREATE TRIGGER outbox_wake_next AFTER UPDATE OF status ON {table}
            FOR EACH ROW WHEN (
                NEW.status IN ('succeeded', 'dead', 'cancelled', 'superseded') AND OLD.status <> NEW.status
                AND (OLD.status <> 'in_flight' OR NEW.status IN ('cancelled', 'superseded')))
            EXECUTE FUNCTION {function_wake_next}();
    END IF;
END
$do$;

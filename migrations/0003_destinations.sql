-- Destinations: the origin of each row's endpoint, the state that all pods share of it, and the indexes of the fair claim.

-- step: create the function that reads an endpoint's origin
-- A bucket key, not a judge: what is no URL gets a bucket as well, and nothing in it can fail an INSERT. The input is cut
-- before it is matched, so that a huge endpoint costs no more than another.
CREATE OR REPLACE FUNCTION {function_origin}(endpoint text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog
AS $function$
    SELECT coalesce((
        SELECT left(lower(m[1]) || '://' || rtrim(lower(m[2]), '.')
            || CASE WHEN coalesce(p.port, '') IN ('', CASE lower(m[1]) WHEN 'http' THEN '80' ELSE '443' END) THEN ''
                    ELSE ':' || p.port END, 300)
        FROM regexp_matches(left($1, 2048), '^(https?)://(?:[^/?#]*@)?(\[[0-9a-f:.]*\]|[^/?#:]*)(?::([0-9]*))?(?:[/?#]|$)', 'i') AS m,
             LATERAL (SELECT ltrim(m[3], '0') AS port) AS p
    ), 'invalid')
$function$;

-- step: create the function that sets a row's destination
-- SECURITY DEFINER, so that a producer needs no right on the function that it calls.
CREATE OR REPLACE FUNCTION {function_set_destination}() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog
AS $function$
BEGIN
    NEW.destination := {function_origin}(NEW.endpoint);
    RETURN NEW;
END
$function$;

-- step: set the destination of every row that is inserted or pointed elsewhere
DO $do$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = {table_literal}::regclass AND tgname = 'outbox_set_destination') THEN
        CREATE TRIGGER outbox_set_destination BEFORE INSERT OR UPDATE OF endpoint ON {table}
            FOR EACH ROW EXECUTE FUNCTION {function_set_destination}();
    END IF;
END
$do$;

-- step: create the table of destinations
CREATE TABLE IF NOT EXISTS {side_destinations} (
    scope       text NOT NULL,
    destination text NOT NULL,
    failures    integer NOT NULL DEFAULT 0,
    holds       integer NOT NULL DEFAULT 0,
    held_until  timestamptz,
    reason      text,
    allowance   integer,
    probe_until timestamptz,
    tokens      double precision,
    tokens_at   timestamptz,
    changed_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (scope, destination)
);

-- The fair claim visits destinations by a loose scan and takes rows of each in order.
-- step: index {index_due}
CREATE INDEX CONCURRENTLY {index_due} ON {table} (destination, next_attempt_at, id) WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NOT NULL;

-- Rows from before the trigger have no destination; they stay claimable without a backfill.
-- step: index {index_due_unknown}
CREATE INDEX CONCURRENTLY {index_due_unknown} ON {table} (next_attempt_at, id) WHERE status IN ('pending', 'in_flight', 'uncertain') AND destination IS NULL;

-- What a cap in flight counts.
-- step: index {index_in_flight}
CREATE INDEX CONCURRENTLY {index_in_flight} ON {table} (destination) WHERE status = 'in_flight';

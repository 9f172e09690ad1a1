-- The history of attempts and of what people did, the functions that producers call, and the view that agents read.
--
-- Names are derived from the table's, so two tables in one schema have each their own. Functions and the view are replaced
-- as a whole, which keeps the rights that were granted on them.

-- No foreign key: the history outlives the row, so it carries what an audit asks by.
-- step: create the history of attempts and acts
CREATE TABLE IF NOT EXISTS {side_history} (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at              timestamptz NOT NULL DEFAULT now(),
    row_id          bigint NOT NULL,
    idempotency_key text NOT NULL,
    tenant_id       uuid NOT NULL,
    operation       text NOT NULL,
    entity_id       text NOT NULL,
    act             text NOT NULL,
    attempt         integer,
    worker          text,
    status_before   text,
    outcome         text,
    reason          text,
    http_status     integer,
    duration_ms     bigint,
    error           text,
    next_row_id     bigint,
    forced          boolean NOT NULL DEFAULT false,
    actor           text,
    filter          text,
    note            text
);

-- step: find the history of a row
CREATE INDEX IF NOT EXISTS {index_history_row} ON {side_history} (row_id, at);

-- step: find what the history may forget
CREATE INDEX IF NOT EXISTS {index_history_at} ON {side_history} (at);

-- An INSERT by another name, with the caller's rights and nothing in it that a search_path could bend. It has no
-- search_path of its own, so that the application's triggers find what they find in a plain INSERT.
-- step: let producers enqueue by a function
CREATE OR REPLACE FUNCTION {function_enqueue}(
    tenant          uuid,
    operation       text,
    entity          text,
    key             text,
    endpoint        text,
    payload         jsonb,
    version         integer DEFAULT 1,
    headers         jsonb DEFAULT NULL,
    expires_at      timestamptz DEFAULT NULL,
    next_attempt_at timestamptz DEFAULT NULL
) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY INVOKER
AS $enqueue$
    INSERT INTO {table} (tenant_id, operation, entity_id, idempotency_key, endpoint, payload,
                         intent_version, headers, expires_at, next_attempt_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, coalesce($10, pg_catalog.now()))
    RETURNING id
$enqueue$;

-- Shared by cancel and supersede; nobody else may call it. FOR UPDATE waits for a claim in progress and then reads what
-- that claim has made of the row. Variables win over columns, which an adopted table may have more of. A claim that is taken away here leaves an attempt whose outcome nobody will write down,
-- so it counts as unknown; its worker carries a token that the row no longer has, and changes nothing.
-- step: take a row back that nobody can have executed
CREATE OR REPLACE FUNCTION {function_retire}(
    wanted_key text,
    becomes text,
    force boolean,
    OUT row_id bigint, OUT tenant uuid, OUT operation text, OUT entity text, OUT version integer, OUT endpoint text,
    OUT headers jsonb, OUT expires_at timestamptz, OUT attempt integer, OUT was text, OUT reason text,
    OUT http_status integer, OUT error text, OUT forced boolean
)
LANGUAGE plpgsql VOLATILE SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $retire$
#variable_conflict use_variable
DECLARE
    unknown integer;
BEGIN
    SELECT t.id, t.tenant_id, t.operation, t.entity_id, t.intent_version, t.endpoint, t.headers, t.expires_at,
           t.attempts, t.status, t.reason, t.last_http_status, t.last_error, t.unknown_attempts
    INTO row_id, tenant, operation, entity, version, endpoint, headers, expires_at,
         attempt, was, reason, http_status, error, unknown
    FROM {table} AS t
    WHERE t.idempotency_key = wanted_key
    FOR UPDATE;
    IF row_id IS NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'OB404', MESSAGE = 'no row has this idempotency key';
    END IF;
    IF was IN ('cancelled', 'superseded') THEN
        RAISE EXCEPTION USING ERRCODE = 'OB409', MESSAGE = format('row %s is %s already', row_id, was), DETAIL = was;
    END IF;
    forced := was NOT IN ('pending', 'dead') OR unknown > 0;
    IF forced AND NOT coalesce(force, false) THEN
        RAISE EXCEPTION USING
            ERRCODE = 'OB409',
            MESSAGE = format('row %s is %s', row_id, was)
                || CASE WHEN was IN ('pending', 'dead') THEN ', and an attempt of it may have been executed' ELSE '' END,
            DETAIL = was,
            HINT = 'allow_unknown => true takes it back all the same, and is recorded';
    END IF;
    UPDATE {table} AS t
    SET status           = becomes,
        reason           = CASE WHEN was IN ('pending', 'dead') THEN t.reason ELSE 'was_' || was END,
        unknown_attempts = t.unknown_attempts + (was = 'in_flight')::integer,
        claim_token      = NULL,
        claimed_by       = NULL,
        locked_until     = NULL,
        completed_at     = CASE WHEN was = 'succeeded' THEN t.completed_at ELSE now() END
    WHERE t.id = row_id;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'OB409', MESSAGE = format('row %s is kept %s by a trigger', row_id, was), DETAIL = was;
    END IF;
END
$retire$;
REVOKE ALL ON FUNCTION {function_retire} FROM PUBLIC;

-- With its owner's rights: the UPDATE right that it needs would let a producer write any state. Hence for nobody until it
-- is granted.
-- step: let producers cancel
CREATE OR REPLACE FUNCTION {function_cancel}(
    key           text,
    note          text DEFAULT NULL,
    allow_unknown boolean DEFAULT false,
    actor         text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $cancel$
#variable_conflict use_variable
DECLARE
    old record;
    caller text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    SELECT * INTO old FROM {function_retire}(key, 'cancelled', allow_unknown);
    INSERT INTO {side_history} (row_id, idempotency_key, tenant_id, operation, entity_id, act, attempt, worker, status_before,
                           outcome, reason, http_status, error, forced, actor, note)
    VALUES (old.row_id, left(key, 2000), old.tenant, left(old.operation, 200), left(old.entity, 500), 'cancel',
            old.attempt, caller, old.was, 'cancelled', left(old.reason, 64), old.http_status, left(old.error, 500),
            old.forced, left(coalesce(actor, caller), 200), left(note, 1000));
    RETURN old.row_id;
END
$cancel$;
REVOKE ALL ON FUNCTION {function_cancel} FROM PUBLIC;

-- What is left out is taken from the old row. Everything or nothing: where the old row is refused, nothing is inserted.
-- step: let producers supersede
CREATE OR REPLACE FUNCTION {function_supersede}(
    key           text,
    new_key       text,
    payload       jsonb,
    endpoint      text DEFAULT NULL,
    headers       jsonb DEFAULT NULL,
    expires_at    timestamptz DEFAULT NULL,
    note          text DEFAULT NULL,
    allow_unknown boolean DEFAULT false,
    actor         text DEFAULT NULL
) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $supersede$
#variable_conflict use_variable
DECLARE
    old record;
    heir bigint;
    caller text := coalesce(nullif(current_setting('role', true), 'none'), session_user);
BEGIN
    SELECT * INTO old FROM {function_retire}(key, 'superseded', allow_unknown);
    INSERT INTO {table} AS t (tenant_id, operation, entity_id, intent_version, idempotency_key, endpoint, payload, headers,
                              expires_at)
    VALUES (old.tenant, old.operation, old.entity, old.version + 1, new_key, coalesce(endpoint, old.endpoint), payload,
            coalesce(headers, old.headers), coalesce(expires_at, old.expires_at))
    RETURNING t.id INTO heir;
    INSERT INTO {side_history} (row_id, idempotency_key, tenant_id, operation, entity_id, act, attempt, worker, status_before,
                           outcome, reason, http_status, error, next_row_id, forced, actor, note)
    VALUES (old.row_id, left(key, 2000), old.tenant, left(old.operation, 200), left(old.entity, 500), 'supersede',
            old.attempt, caller, old.was, 'superseded', left(old.reason, 64), old.http_status, left(old.error, 500),
            heir, old.forced, left(coalesce(actor, caller), 200), left(note, 1000));
    RETURN heir;
END
$supersede$;
REVOKE ALL ON FUNCTION {function_supersede} FROM PUBLIC;

-- Two entries in FROM make a view that nothing can be written through, and hide no index from a condition on it. Payload,
-- endpoint and headers stay out. From PostgreSQL 15 on it is read with the reader's own rights, row security included.
-- step: show agents what became of their intents
CREATE OR REPLACE VIEW {side_intents} AS
SELECT t.id, t.tenant_id, t.operation, t.entity_id, t.intent_version, t.idempotency_key,
       w.state, w.may_have_executed,
       t.attempts, t.reason, t.last_http_status, t.last_error, t.downstream_id,
       t.created_at, t.next_attempt_at, t.completed_at
FROM {table} AS t
CROSS JOIN LATERAL (
    SELECT CASE t.status
               WHEN 'pending' THEN 'queued'
               WHEN 'in_flight' THEN 'delivering'
               WHEN 'succeeded' THEN 'delivered'
               WHEN 'dead' THEN 'failed'
               ELSE t.status
           END AS state,
           t.status IN ('in_flight', 'succeeded', 'uncertain') OR t.unknown_attempts > 0
               OR (t.status IN ('cancelled', 'superseded')
                   AND coalesce(t.reason IN ('was_in_flight', 'was_uncertain', 'was_succeeded'), false))
               AS may_have_executed
) AS w;
DO $do$
BEGIN
    IF current_setting('server_version_num')::integer >= 150000 THEN
        ALTER VIEW {side_intents} SET (security_invoker = true);
    END IF;
END
$do$;

-- A group of writes in one call. The server never waits for the client within the transaction.
--
-- Writes of a group go by their place in it. A group is all or nothing: if any write has to be
-- refused, the call raises DR001, whose detail names those writes, and the client submits the rest.
-- A group is recognised when it comes again (after a broken connection the client cannot know
-- whether it was committed), because its number is committed with it in the worker's own row.
--
-- Order of locks, in every transaction: the worker's own row, keys sorted, tasks by number, accounts
-- (new ones by owner, then by number), the rest. Accounts come late, because many tasks may have the
-- same payer; and a message that was sent twice is known by its key before its hold can be refused.
--
-- No two writes of a group concern the same task, id or key: the client sees to that.
CREATE FUNCTION write_group(
    w int, g bigint,
    k_write int[], k_scope int[], k_key bytea[], k_task bigint[], k_reply bytea[],
    c_write int[], c_number bigint[], c_id text[], c_scope int[], c_context text[],
    c_state smallint[], c_at bigint[], c_last int[],
    a_write int[], a_number bigint[], a_seq int[], a_fence int[], a_next int[], a_from smallint[],
    a_scope int[], a_state smallint[], a_at bigint[], a_last int[],
    e_task bigint[], e_last int[], e_n int[], e_kind smallint[], e_bodies bytea[],
    s_task bigint[], s_seq int[], s_head bytea[], s_artifacts bytea[],
    -- What few writes bring: see write_rest. NULL: nothing.
    rest jsonb
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    me workers;
    refused int[];
BEGIN
    -- Waits for an earlier submission of this group that is still under way.
    SELECT * INTO me FROM workers WHERE number = w FOR UPDATE;
    IF me.last_group >= g THEN
        RETURN;
    END IF;
    IF me.number IS NULL OR me.gone_at IS NOT NULL THEN
        RAISE EXCEPTION 'this worker was taken for dead' USING ERRCODE = 'DR002';
    END IF;
    UPDATE workers SET last_group = g WHERE number = w;

    IF cardinality(k_key) > 0 THEN
        WITH given AS MATERIALIZED (
            SELECT * FROM unnest(k_write, k_scope, k_key, k_task, k_reply)
                AS k (write, scope, key, task, reply) ORDER BY scope, key
        ), made AS (
            INSERT INTO keys (scope, key, task, reply, made_at)
            SELECT scope, key, task, reply, now_ms() FROM given
            ON CONFLICT DO NOTHING RETURNING scope, key
        )
        SELECT array_agg(DISTINCT write) INTO refused
        FROM given LEFT JOIN made USING (scope, key) WHERE made.key IS NULL;
        PERFORM refuse(refused);
    END IF;

    IF cardinality(c_number) > 0 THEN
        WITH made AS (
            INSERT INTO tasks (number, id, scope, context, state, status_at, last_seq, fence, holder)
            SELECT number, id, scope, context, state, at, last, 1, w
            FROM unnest(c_number, c_id, c_scope, c_context, c_state, c_at, c_last)
                AS c (number, id, scope, context, state, at, last)
            ON CONFLICT (id, scope) DO NOTHING RETURNING number
        )
        SELECT array_agg(c.write) INTO refused
        FROM unnest(c_write, c_number) AS c (write, number) LEFT JOIN made USING (number)
        WHERE made.number IS NULL;
        PERFORM refuse(refused);
    END IF;

    IF cardinality(a_number) > 0 OR rest ? 'notes' THEN
        PERFORM 1 FROM tasks
        WHERE number = ANY (a_number
            || ARRAY(SELECT (note ->> 1)::bigint FROM jsonb_array_elements(rest -> 'notes') AS note))
        ORDER BY number FOR UPDATE;
        WITH made AS (
            UPDATE tasks SET state = a.state, status_at = a.at, last_seq = a.last, fence = a.next,
                holder = w
            FROM unnest(a_number, a_seq, a_fence, a_next, a_state, a_at, a_last)
                AS a (number, seq, fence, next, state, at, last)
            WHERE tasks.number = a.number AND tasks.last_seq = a.seq AND tasks.fence = a.fence
            RETURNING tasks.number
        )
        SELECT array_agg(a.write) INTO refused
        FROM unnest(a_write, a_number) AS a (write, number) LEFT JOIN made USING (number)
        WHERE made.number IS NULL;
        PERFORM refuse(refused);
    END IF;

    IF rest ? 'effects' THEN
        PERFORM apply_effects(rest -> 'effects');
    END IF;

    IF cardinality(e_task) > 0 THEN
        INSERT INTO events (task, last, n, kind, bodies)
        SELECT * FROM unnest(e_task, e_last, e_n, e_kind, e_bodies);
        INSERT INTO counts (scope, state, shard, n)
        SELECT scope, state, w, sum(n) FROM (
            SELECT scope, state, 1 AS n FROM unnest(c_scope || a_scope, c_state || a_state)
                AS up (scope, state)
            UNION ALL
            SELECT scope, state, -1 FROM unnest(a_scope, a_from) AS down (scope, state)
        ) AS moved GROUP BY scope, state HAVING sum(n) <> 0 ORDER BY scope, state
        ON CONFLICT (scope, state, shard) DO UPDATE SET n = counts.n + excluded.n;
    END IF;
    IF cardinality(s_task) > 0 THEN
        INSERT INTO snapshots (task, seq, head, artifacts)
        SELECT * FROM unnest(s_task, s_seq, s_head, s_artifacts)
        ON CONFLICT (task) DO UPDATE
        SET seq = excluded.seq, head = excluded.head, artifacts = excluded.artifacts;
    END IF;
    IF rest IS NOT NULL THEN
        PERFORM write_rest(w, rest);
    END IF;
END $$;

CREATE FUNCTION refuse(refused int[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    -- No rows make no array, which is why "none refused" is NULL here and never an empty one.
    IF refused IS NOT NULL THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = 'DR001', DETAIL = to_json(refused)::text;
    END IF;
END $$;

-- Returns the key to seal with, which stays that until the transaction ends; NULL: nothing is sealed.
-- Two statements: the second sees what a change of key did that the first had to wait for.
CREATE FUNCTION current_key() RETURNS bytea LANGUAGE plpgsql VOLATILE AS $$
BEGIN
    PERFORM pg_advisory_xact_lock_shared(1685217639, -3);
    RETURN (SELECT id FROM vault_keys WHERE is_current);
END $$;

-- Each list of `rest` has arrays: the place of the write in the group first, where it may be
-- refused. Bytes are base64.
CREATE FUNCTION write_rest(w int, rest jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    refused int[];
BEGIN
    IF rest ?| ARRAY['notes', 'pushes', 'withheld']
        AND current_key() IS DISTINCT FROM decode(rest ->> 'key', 'base64')
    THEN
        RAISE EXCEPTION 'sealed with a key that is not the current one' USING ERRCODE = 'DR003';
    END IF;
    IF rest ? 'notes' THEN
        WITH given AS (
            SELECT (v ->> 0)::int AS write, (v ->> 1)::bigint AS task,
                decode(v ->> 2, 'base64') AS body, place
            FROM jsonb_array_elements(rest -> 'notes') WITH ORDINALITY AS one (v, place)
        ), made AS (
            INSERT INTO notes (task, body)
            SELECT task, body FROM given JOIN tasks ON tasks.number = task
            WHERE state NOT IN (3, 4, 5, 7) ORDER BY place RETURNING task
        )
        SELECT array_agg(write) INTO refused
        FROM given WHERE NOT EXISTS (SELECT 1 FROM made WHERE made.task = given.task);
        PERFORM refuse(refused);
    END IF;
    IF rest ? 'dealt' THEN
        DELETE FROM notes
        WHERE number IN (SELECT v::bigint FROM jsonb_array_elements_text(rest -> 'dealt') AS v);
    END IF;
    IF rest ? 'deadlines' THEN
        DELETE FROM deadlines
        WHERE task IN (SELECT (v ->> 0)::bigint FROM jsonb_array_elements(rest -> 'deadlines') AS v);
        INSERT INTO deadlines (task, at)
        SELECT (v ->> 0)::bigint, (v ->> 1)::bigint
        FROM jsonb_array_elements(rest -> 'deadlines') AS v WHERE (v ->> 1)::bigint > 0;
    END IF;
    IF rest ? 'pushes' THEN
        INSERT INTO pushes (task, id, config, sealed, holder, cursor)
        SELECT (v ->> 0)::bigint, v ->> 1, decode(v ->> 2, 'base64'), decode(v ->> 3, 'base64'), w, 0
        FROM jsonb_array_elements(rest -> 'pushes') WITH ORDINALITY AS one (v, place)
        ORDER BY place;
    END IF;
    IF rest ? 'forgotten' THEN
        DELETE FROM withheld
        WHERE task IN (SELECT v::bigint FROM jsonb_array_elements_text(rest -> 'forgotten') AS v);
    END IF;
    IF rest ? 'withheld' THEN
        INSERT INTO withheld (task, seq, body)
        SELECT (v ->> 0)::bigint, (v ->> 1)::int, decode(v ->> 2, 'base64')
        FROM jsonb_array_elements(rest -> 'withheld') AS v
        ON CONFLICT (task, seq) DO UPDATE SET body = excluded.body;
    END IF;
END $$;

-- The ledger replaces it.
CREATE FUNCTION apply_effects(effects jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'this store has no ledger';
END $$;

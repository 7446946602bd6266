-- Leases. A worker is dead when its session no longer holds the advisory lock of its number, or when
-- its last sign of life is older than its lease, by the clock of this server. Another worker finds
-- that out and marks it gone: from then on `write_group` takes nothing from it, and its tasks may
-- be claimed. Nothing but the mark decides who may write.

-- 1685217639 is "drag": the first half of all our advisory locks.
CREATE FUNCTION has_session(worker int) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM pg_locks
        WHERE locktype = 'advisory' AND classid = 1685217639 AND objid = worker::oid AND objsubid = 2
            AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database()))
$$;

-- Whether a worker gave no sign of life for a whole lease in which `judge` gave many. A server that
-- was frozen or away makes all signs late at once: then no worker is late until those who judge have
-- been heard steadily for a lease, in which the living have been heard as well.
CREATE FUNCTION is_late(worker int, judge int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM beats WHERE beats.worker = $2
            AND steady_since <= clock_timestamp() - (SELECT lease FROM workers WHERE number = $1))
        AND NOT EXISTS (SELECT 1 FROM beats JOIN workers ON number = beats.worker
            WHERE beats.worker = $1 AND at > clock_timestamp() - lease)
$$;

-- Sessions of all workers end together when the server starts again, recovers from the crash of one
-- of its processes (which resets its statistics), or is replaced by a standby (on a new timeline).
CREATE FUNCTION sessions_began() RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT greatest(pg_postmaster_start_time(), (SELECT stats_reset FROM pg_stat_bgwriter))
$$;

CREATE FUNCTION timeline() RETURNS text LANGUAGE sql VOLATILE AS $$
    SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)
$$;

-- Whether a worker had its lock after that: if the lock is free, its session ended alone.
CREATE FUNCTION had_session(worker int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT EXISTS (SELECT 1 FROM beats WHERE beats.worker = $1
        AND at > sessions_began() AND timeline = timeline())
$$;

-- Whether a worker has no session, and has been silent for longer than one that lives and opens a
-- new session at once.
CREATE FUNCTION is_cut_off(worker int) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT NOT has_session($1) AND EXISTS (
        SELECT 1 FROM workers LEFT JOIN beats ON beats.worker = number
        WHERE number = $1 AND coalesce(at, joined_at) < clock_timestamp() - interval '0.5 s')
$$;

CREATE FUNCTION is_dead(worker int, judge int, judges_sessions boolean) RETURNS boolean
LANGUAGE sql VOLATILE AS $$
    SELECT is_late($1, $2) OR (is_cut_off($1) AND ($3 OR had_session($1)))
$$;

-- Marks a worker gone, and notes whether it had more than one task under way: that is asked when
-- its tasks are claimed, in portions and by different workers.
CREATE FUNCTION bury(worker int) RETURNS void LANGUAGE sql VOLATILE AS $$
    UPDATE workers SET gone_at = clock_timestamp(), is_crowd = (
        SELECT count(*) > 1 FROM (
            SELECT 1 FROM tasks WHERE holder = $1 AND state IN (1, 2) LIMIT 2) AS several)
    WHERE number = $1 AND gone_at IS NULL
$$;

-- Marks the dead gone; returns their numbers. `judges_sessions`: the session of the one who asks is
-- old enough for all that live to have theirs again after a restart of the server.
CREATE FUNCTION reap(me int, judges_sessions boolean) RETURNS SETOF int LANGUAGE plpgsql AS $$
DECLARE
    dead int;
BEGIN
    FOR dead IN SELECT number FROM workers WHERE gone_at IS NULL AND number <> me
        AND is_dead(number, me, judges_sessions) ORDER BY number
    LOOP
        -- Not while it writes: that ends by itself, and the next look comes soon.
        PERFORM 1 FROM workers WHERE number = dead AND gone_at IS NULL FOR UPDATE SKIP LOCKED;
        IF FOUND AND is_dead(dead, me, judges_sessions) THEN
            PERFORM bury(dead);
            RETURN NEXT dead;
        END IF;
    END LOOP;
END $$;

-- Gives everything back in good order: the tasks have no holder, and no attempt is lost.
CREATE FUNCTION leave(me int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM workers WHERE number = me FOR UPDATE;
    PERFORM 1 FROM tasks WHERE holder = me AND state IN (1, 2) ORDER BY number FOR UPDATE;
    UPDATE tasks SET holder = 0 WHERE holder = me AND state IN (1, 2);
    UPDATE pushes SET holder = 0 WHERE holder = me AND is_open;
    DELETE FROM duties WHERE worker = me;
    UPDATE workers SET gone_at = clock_timestamp() WHERE number = me AND gone_at IS NULL;
    DELETE FROM beats WHERE worker = me;
END $$;

-- Takes over tasks that no living worker holds and that are still as they were found. A task that
-- this worker took by the same call before is returned again: the answer to that call may be lost.
-- `held_by` is negative if its former holder had others under way too.
CREATE FUNCTION claim_tasks(me int, numbers bigint[], fences int[], holders int[])
RETURNS TABLE (number bigint, id text, context text, scope int, state smallint, status_at bigint,
    last_seq int, fence int, held_by int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM workers WHERE workers.number = me AND gone_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this worker was taken for dead' USING ERRCODE = 'DR002';
    END IF;
    RETURN QUERY
    WITH wanted AS MATERIALIZED (
        SELECT tasks.number, found.fence, found.holder
        FROM unnest(numbers, fences, holders) AS found (number, fence, holder)
        JOIN tasks ON tasks.number = found.number
        WHERE (tasks.fence = found.fence
                AND tasks.holder NOT IN (SELECT workers.number FROM workers WHERE gone_at IS NULL))
            OR (tasks.fence = found.fence + 1 AND tasks.holder = me)
        ORDER BY tasks.number FOR UPDATE OF tasks SKIP LOCKED
    )
    UPDATE tasks SET holder = me, fence = wanted.fence + 1
    FROM wanted LEFT JOIN workers ON workers.number = wanted.holder
    WHERE tasks.number = wanted.number
    RETURNING tasks.number, tasks.id, tasks.context, tasks.scope, tasks.state, tasks.status_at,
        tasks.last_seq, tasks.fence,
        CASE WHEN workers.is_crowd THEN -wanted.holder ELSE wanted.holder END;
END $$;

-- A process of a release that does not know the present schema becomes no worker: also one that was
-- at work when the schema was changed, and finds itself marked gone.
CREATE FUNCTION check_release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.schema < (SELECT oldest FROM dragoman_schema) THEN
        RAISE EXCEPTION 'a newer release changed this database; stop this process'
            USING ERRCODE = 'DR005';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER workers_know_the_schema BEFORE INSERT ON workers
    FOR EACH ROW EXECUTE FUNCTION check_release();

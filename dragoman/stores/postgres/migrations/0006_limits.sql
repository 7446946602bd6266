-- Limits that all workers count together: one bucket for each limit and caller. A bucket that is
-- full has no row, or an old one.

CREATE TABLE limits (
    name    text NOT NULL, -- which limit
    key     bytea NOT NULL, -- whose bucket: a hash
    full_at double precision NOT NULL, -- when it is full again, in seconds
    PRIMARY KEY (name, key)
) WITH (fillfactor = 50);

-- Takes portions from several buckets: at least what is needed, or nothing. A portion is what is
-- wanted at once, or a part of what is left, or what flows in within 50 ms.
CREATE FUNCTION draw_limits(names text[], keys bytea[], counts float8[], spans float8[],
    needs int[], wants int[], backs int[])
RETURNS TABLE (place bigint, granted int, remaining float8, living int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one     record;
    moment  float8;
    filled  float8;
    step    float8;
    room    float8;
    portion float8;
BEGIN
    -- Losing the last draws in a crash gives callers a little more; waiting costs every portion.
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT greatest(1, count(*)) INTO living FROM workers WHERE gone_at IS NULL;
    FOR one IN
        SELECT * FROM unnest(names, keys, counts, spans, needs, wants, backs) WITH ORDINALITY
            AS asked (name, key, most, seconds, need, want, back, number)
        ORDER BY name, key
    LOOP
        INSERT INTO limits VALUES (one.name, one.key, 0)
        ON CONFLICT (name, key) DO UPDATE SET full_at = limits.full_at
        RETURNING full_at INTO filled;
        moment := extract(epoch FROM clock_timestamp());
        step := one.seconds / one.most;
        filled := greatest(greatest(filled, moment) - one.back * step, moment);
        room := (one.seconds - (filled - moment)) / step + 1e-6;
        place := one.number;
        granted := 0;
        IF one.need > 0 AND room >= one.need THEN
            portion := greatest(one.want, room / (16 * living), 0.05 / step / living);
            granted := least(floor(room), floor(portion));
        END IF;
        remaining := room - granted;
        UPDATE limits SET full_at = filled + granted * step
        WHERE name = one.name AND key = one.key;
        RETURN NEXT;
    END LOOP;
END $$;

-- Limits on how many there are at once: what each worker has taken. Those of a worker that is gone
-- count no more.
CREATE TABLE seats (
    name   text NOT NULL, -- which limit
    key    bytea NOT NULL, -- whose
    worker int NOT NULL,
    taken  int NOT NULL,
    PRIMARY KEY (name, key, worker)
) WITH (fillfactor = 50);

-- Takes seats as `draw_limits` does portions. A worker says how many it has, not how many it gives
-- back: it may not have heard of those it was given last.
CREATE FUNCTION draw_seats(me int, names text[], keys bytea[], counts int[],
    needs int[], wants int[], helds int[])
RETURNS TABLE (place bigint, granted int, remaining float8, living int) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    one    record;
    others bigint;
    room   bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'off', true);
    SELECT greatest(1, count(*)) INTO living FROM workers WHERE gone_at IS NULL;
    FOR one IN
        SELECT *, hashtext(name || encode(key, 'hex')) AS lock
        FROM unnest(names, keys, counts, needs, wants, helds) WITH ORDINALITY
            AS asked (name, key, most, need, want, held, number)
        ORDER BY lock
    LOOP
        PERFORM pg_advisory_xact_lock(1685217640, one.lock);
        SELECT coalesce(sum(taken), 0) INTO others
        FROM seats JOIN workers ON workers.number = worker AND gone_at IS NULL
        WHERE name = one.name AND key = one.key AND worker <> me;
        room := one.most - others - one.held;
        place := one.number;
        granted := 0;
        IF one.need > 0 AND room >= one.need THEN
            granted := least(room, greatest(one.want, room / (16 * living)));
        END IF;
        remaining := room - granted;
        IF one.held + granted > 0 THEN
            INSERT INTO seats VALUES (one.name, one.key, me, one.held + granted)
            ON CONFLICT (name, key, worker) DO UPDATE SET taken = excluded.taken;
        ELSE
            DELETE FROM seats WHERE name = one.name AND key = one.key AND worker = me;
        END IF;
        RETURN NEXT;
    END LOOP;
END $$;

-- Tasks, their logs and their workers. Task numbers are given by the workers, from blocks.

CREATE TABLE facts (
    name  text PRIMARY KEY,
    value bytea NOT NULL
);

CREATE TABLE scopes (
    number int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    agent  text NOT NULL,
    tenant text NOT NULL,
    owner  text NOT NULL,
    UNIQUE (agent, tenant, owner)
);

-- One row per process. A worker that is gone keeps its row until no task names it: the number is
-- never given again, and a group in doubt is still recognised by it.
CREATE TABLE workers (
    number     int GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    release    text NOT NULL, -- of the program
    schema     int NOT NULL, -- the migrations it knows
    lease      interval NOT NULL,
    joined_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    last_group bigint NOT NULL DEFAULT 0, -- the last group of writes that was committed
    gone_at    timestamptz, -- NULL: it may write
    -- Where its newest tasks are: the first numbers of the two blocks it took last. A reader of all
    -- tasks has to look there again, and nowhere else below the highest number.
    block      bigint NOT NULL DEFAULT 0,
    before     bigint NOT NULL DEFAULT 0,
    is_crowd   boolean NOT NULL DEFAULT false -- it left more than one task under way
) WITH (fillfactor = 50);

-- Signs of life, apart from `workers`: a worker writes its own while a group of its writes waits.
CREATE TABLE beats (
    worker       int PRIMARY KEY,
    at           timestamptz NOT NULL,
    steady_since timestamptz NOT NULL, -- no two signs since were far from each other
    timeline     text NOT NULL -- of the server, while the session had its lock; else empty
) WITH (fillfactor = 50);

-- Blocks of 4,096 task numbers.
CREATE SEQUENCE blocks;

CREATE TABLE tasks (
    number    bigint PRIMARY KEY,
    id        text NOT NULL,
    scope     int NOT NULL,
    context   text NOT NULL,
    state     smallint NOT NULL,
    status_at bigint NOT NULL, -- milliseconds
    last_seq  int NOT NULL,
    fence     int NOT NULL,
    holder    int NOT NULL -- the worker that writes its log; 0: none
) WITH (fillfactor = 85);
CREATE UNIQUE INDEX tasks_by_id ON tasks (id, scope);
CREATE INDEX tasks_by_time ON tasks (scope, status_at, number);
CREATE INDEX tasks_by_state ON tasks (scope, state, status_at, number);
CREATE INDEX tasks_by_context ON tasks (scope, context, status_at, number);
CREATE INDEX tasks_unfinished ON tasks (holder) WHERE state IN (1, 2);

-- One row per write: the events that became durable together, one JSON text a line. Partitions
-- hold 2^20 task numbers each.
CREATE TABLE events (
    task   bigint NOT NULL,
    last   int NOT NULL, -- the position of the last of them
    n      int NOT NULL,
    kind   smallint NOT NULL, -- 1: artifact chunks only, 0: anything else
    bodies bytea NOT NULL,
    PRIMARY KEY (task, last)
) PARTITION BY RANGE (task);

-- The task at its last resting point, its artifacts apart so that lists need not read them.
CREATE TABLE snapshots (
    task      bigint NOT NULL PRIMARY KEY,
    seq       int NOT NULL,
    head      bytea NOT NULL,
    artifacts bytea NOT NULL
) PARTITION BY RANGE (task);

-- What a caller's message became, so that its repetition becomes the same.
CREATE TABLE keys (
    scope   int NOT NULL,
    key     bytea NOT NULL,
    task    bigint,
    reply   bytea,
    made_at bigint NOT NULL, -- milliseconds
    PRIMARY KEY (scope, key)
);
CREATE INDEX keys_by_time ON keys (made_at);

-- How many tasks of a scope are in a state. Each worker counts for itself: no two wait for a row.
CREATE TABLE counts (
    scope int NOT NULL,
    state smallint NOT NULL,
    shard int NOT NULL, -- the worker; 0: all that are gone
    n     bigint NOT NULL,
    PRIMARY KEY (scope, state, shard)
) WITH (fillfactor = 70);

-- What another worker has to say to a task's holder: only the holder writes the log.
CREATE TABLE notes (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task   bigint NOT NULL,
    body   bytea NOT NULL
);
CREATE INDEX notes_by_task ON notes (task);

-- Until when a task has to end.
CREATE TABLE deadlines (
    task bigint PRIMARY KEY,
    at   bigint NOT NULL -- milliseconds
);
CREATE INDEX deadlines_by_time ON deadlines (at);

-- Who is told of a task's events: a cursor on its log.
CREATE TABLE pushes (
    number        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task          bigint NOT NULL,
    id            text NOT NULL,
    config        bytea NOT NULL, -- JSON
    sealed        bytea, -- what of it is secret; NULL: nothing is, or the store has no key
    holder        int NOT NULL, -- the worker that delivers
    is_open       boolean NOT NULL DEFAULT true, -- false: nothing more will be delivered
    cursor        int NOT NULL, -- the last event that is dealt with
    tries         int NOT NULL DEFAULT 0, -- of the event after it
    due_at        bigint NOT NULL DEFAULT 0, -- milliseconds
    failing_since bigint NOT NULL DEFAULT 0, -- milliseconds; 0: the last try succeeded
    problem       text NOT NULL DEFAULT '', -- of the last try, for the operator
    UNIQUE (task, id)
);
CREATE INDEX pushes_open ON pushes (holder) WHERE is_open;

-- Events that a receiver never took.
CREATE TABLE dead_letters (
    push    bigint NOT NULL,
    seq     int NOT NULL,
    tries   int NOT NULL,
    at      bigint NOT NULL, -- milliseconds
    problem text NOT NULL,
    PRIMARY KEY (push, seq)
);

-- The keys that values are sealed with, by their ids.
CREATE TABLE vault_keys (
    id         bytea PRIMARY KEY,
    is_current boolean NOT NULL -- the one to seal with
);
CREATE UNIQUE INDEX vault_keys_current ON vault_keys (is_current) WHERE is_current;

-- What a caller said in answer to a sensitive question. The log has a placeholder.
CREATE TABLE withheld (
    task bigint NOT NULL,
    seq  int NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (task, seq)
);

CREATE FUNCTION now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint $$;

-- Makes sure that there is a place for the events of a task; the caller has the lock of blocks.
CREATE FUNCTION make_place(task bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    part bigint := task >> 20;
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['events', 'snapshots'] LOOP
        -- Not `to_regclass`: it may remember from before the lock that there was none.
        IF NOT EXISTS (SELECT 1 FROM pg_class WHERE relname = format('%s_%s', name, part)
                AND relnamespace = current_schema()::regnamespace) THEN
            EXECUTE format('CREATE TABLE %s_%s (LIKE %s INCLUDING ALL)', name, part, name);
            EXECUTE format('ALTER TABLE %s ATTACH PARTITION %s_%s FOR VALUES FROM (%s) TO (%s)',
                name, name, part, part << 20, (part + 1) << 20);
        END IF;
    END LOOP;
END $$;

-- Gives a worker a block of task numbers and makes sure that there is a place for their events.
-- `mine` is the block it has. Under a lock from the first: who sees a block sees all lower ones.
CREATE FUNCTION take_block(w int, mine bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    first bigint;
BEGIN
    PERFORM 1 FROM workers WHERE number = w AND gone_at IS NULL FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'this worker was taken for dead' USING ERRCODE = 'DR002';
    END IF;
    PERFORM pg_advisory_xact_lock(1685217639, -1);
    first := nextval('blocks') * 4096;
    PERFORM make_place(first);
    UPDATE workers SET block = first, before = mine WHERE number = w;
    RETURN first;
END $$;

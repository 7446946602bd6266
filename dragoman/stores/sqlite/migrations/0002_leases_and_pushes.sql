-- The processes that share the file. A task's lease is valid while its holder has a row here, and
-- whoever finds a holder dead or overdue removes its row.
CREATE TABLE workers (
    number  INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice
    expires INTEGER NOT NULL, -- milliseconds of the machine's own clock, which nobody sets
    lease   INTEGER NOT NULL -- milliseconds it was given for
);

-- Who writes the task's log; 0: nobody, since its last one left in good order.
ALTER TABLE tasks ADD COLUMN holder INTEGER NOT NULL DEFAULT 0;
CREATE INDEX tasks_unfinished ON tasks (holder) WHERE state IN (1, 2);

-- What another process has to say to a task's holder: only the holder writes the log.
CREATE TABLE notes (
    number INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice: whoever took one knows it by it
    task   INTEGER NOT NULL,
    body   BLOB NOT NULL
);
CREATE INDEX notes_by_task ON notes (task);

-- Until when a task has to end.
CREATE TABLE deadlines (
    task INTEGER PRIMARY KEY,
    at   INTEGER NOT NULL -- milliseconds
);
CREATE INDEX deadlines_by_time ON deadlines (at);

-- Who is told of a task's events: a cursor on its log.
CREATE TABLE pushes (
    number        INTEGER PRIMARY KEY AUTOINCREMENT, -- never given twice
    task          INTEGER NOT NULL,
    id            TEXT NOT NULL,
    config        BLOB NOT NULL, -- JSON
    holder        INTEGER NOT NULL, -- the process that delivers
    is_open       INTEGER NOT NULL, -- 0: nothing more will be delivered
    cursor        INTEGER NOT NULL, -- the last event that is dealt with
    tries         INTEGER NOT NULL, -- of the event after it
    due_at        INTEGER NOT NULL, -- milliseconds
    failing_since INTEGER NOT NULL, -- milliseconds; 0: the last try succeeded
    problem       TEXT NOT NULL, -- of the last try, for the operator
    UNIQUE (task, id)
);
CREATE INDEX pushes_open ON pushes (holder) WHERE is_open = 1;

-- Events that a receiver never took.
CREATE TABLE dead_letters (
    push    INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    tries   INTEGER NOT NULL,
    at      INTEGER NOT NULL, -- milliseconds
    problem TEXT NOT NULL,
    PRIMARY KEY (push, seq)
) WITHOUT ROWID;

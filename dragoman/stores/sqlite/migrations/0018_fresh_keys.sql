-- Keys that are not in the index of keys yet: each new one would be another page of it to write. The
-- process that is alone with the file knows them by heart, and moves them many at a time; where
-- several share the file there are none.
CREATE TABLE fresh_keys (
    scope   INTEGER NOT NULL,
    key     BLOB NOT NULL,
    task    INTEGER,
    reply   BLOB,
    made_at INTEGER NOT NULL -- milliseconds
);

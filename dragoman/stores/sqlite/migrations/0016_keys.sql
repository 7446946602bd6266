-- Keys are appended, and found by an index of small entries: replies among them made it ten times as
-- large, so that each new key was another page to write.
CREATE TABLE keys_appended (
    scope   INTEGER NOT NULL,
    key     BLOB NOT NULL,
    task    INTEGER,
    reply   BLOB,
    made_at INTEGER NOT NULL -- milliseconds
);
INSERT INTO keys_appended SELECT scope, key, task, reply, made_at FROM keys;
DROP TABLE keys;
ALTER TABLE keys_appended RENAME TO keys;
CREATE UNIQUE INDEX keys_by_key ON keys (scope, key);

-- Which worker does what one at a time does for all. It was a time until which one checks agents.
CREATE TABLE duties (
    name   TEXT PRIMARY KEY,
    worker INTEGER NOT NULL
) WITHOUT ROWID;
ALTER TABLE agents_watch DROP COLUMN worker;
ALTER TABLE agents_watch DROP COLUMN until;

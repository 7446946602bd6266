-- The keys that values in this file are sealed with, by their ids.
CREATE TABLE vault_keys (
    id         BLOB PRIMARY KEY,
    is_current INTEGER NOT NULL -- 1: the one to seal with
) WITHOUT ROWID;

-- What of a receiver's configuration is secret: token and credentials, sealed. NULL: nothing is, or
-- it stands in the configuration because the file has no key.
ALTER TABLE pushes ADD COLUMN sealed BLOB;

-- What a caller said in answer to a sensitive question, for as long as its task may need it. The
-- log has a placeholder.
CREATE TABLE withheld (
    task INTEGER NOT NULL,
    seq  INTEGER NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (task, seq)
) WITHOUT ROWID;

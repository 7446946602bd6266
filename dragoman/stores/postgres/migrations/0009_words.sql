-- compatible
-- The words of tasks, written behind the tasks.
CREATE TABLE task_words (
    task     bigint PRIMARY KEY,
    is_final boolean NOT NULL, -- it had ended
    words    tsvector NOT NULL
);
CREATE INDEX task_words_by_word ON task_words USING gin (words);
CREATE INDEX task_words_unfinished ON task_words (task) WHERE NOT is_final;

-- Words go with their tasks, also where a release forgets tasks that knows of no words.
CREATE FUNCTION forget_words() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM task_words USING gone WHERE task = gone.number;
    RETURN NULL;
END $$;
CREATE TRIGGER forget_words AFTER DELETE ON tasks REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION forget_words();

-- Blocks of task numbers that are not indexed whole, and how far each is. The highest stays.
CREATE TABLE unindexed_blocks (
    first bigint PRIMARY KEY,
    upto  bigint NOT NULL
) WITH (fillfactor = 50);

-- With the blocks that were given since.
CREATE VIEW blocks_to_index AS
SELECT first, upto FROM unindexed_blocks
UNION ALL
SELECT number * 4096, number * 4096 - 1 FROM generate_series(
    coalesce((SELECT max(first) / 4096 + 1 FROM unindexed_blocks),
        (SELECT min(number) / 4096 FROM tasks), 0),
    (SELECT last_value FROM blocks)) AS number;

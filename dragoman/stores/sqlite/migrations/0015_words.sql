-- Words of tasks are in full-text tables `words_N`, each of 2^17 task numbers, that are made when they
-- are needed. These tasks were indexed before they had ended.
CREATE TABLE unfinished_words (
    task INTEGER PRIMARY KEY
);

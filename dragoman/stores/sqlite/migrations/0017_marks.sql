-- The index of words has the agents that a gateway gave tasks to: where there are such, it is
-- written anew, behind the tasks. Until then all of it is good but for these.
DELETE FROM facts WHERE name = 'indexed_number' AND EXISTS (SELECT 1 FROM agents);

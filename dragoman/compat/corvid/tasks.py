"""Inbound tasks in memory: each is a session of a process manager, whose events change its state.

A thousand are kept; beyond that the oldest ended tasks are dropped, and running ones never.
"""

import threading
from collections.abc import Mapping
from typing import Any

from dragoman.compat.corvid.records import A2ATask, A2ATaskDeps, SendParams, member, text_of
from dragoman.dialects.house.corvid import DEFAULT_TIMEOUT
from dragoman.model.clock import Clock, SystemClock

MAX_TASKS = 1000
# How many more are dropped at once, so that not every task scans all of them.
_SLACK = 100


class TaskStore:
    """Tasks of this process."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._tasks: dict[str, A2ATask] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._tasks)

    def send(self, deps: A2ATaskDeps, body: SendParams | Mapping[str, Any]) -> A2ATask:
        """Begin a task at the first agent with a default project and return it at once; its
        session's events change it. Raises `NotFoundError` if there is no such agent."""
        text = body["message"]
        agent = deps.agent()
        with self._lock:
            self._prune()
            task = A2ATask(text, body.get("timeoutMs") or DEFAULT_TIMEOUT, self._clock)
            self._tasks[task.id] = task
        try:
            session = deps.session(agent, text)
            task.session_id = str(member(session, "id"))
            task.move("working")

            def hear(session_id: str, event: Mapping[str, Any]) -> None:
                with self._lock:
                    _apply(task, event)

            # Before it starts: its events may come at once.
            deps.process_manager.subscribe(task.session_id, hear)
            deps.process_manager.start_process(session, text, {"schedulerMode": True})
        except Exception:
            # No caller knows its id, and no event will end it.
            with self._lock:
                self._tasks.pop(task.id, None)
            raise
        return task

    def get(self, task_id: str) -> A2ATask | None:
        """Return a task; None: there is none."""
        return self._tasks.get(task_id)

    def clear(self) -> None:
        """Drop all tasks."""
        with self._lock:
            self._tasks.clear()

    def _prune(self) -> None:
        if len(self._tasks) < MAX_TASKS:
            return
        over = [task for task in self._tasks.values() if task.is_over]
        over.sort(key=lambda task: task.created_at)
        for task in over[: len(self._tasks) - MAX_TASKS + _SLACK]:
            del self._tasks[task.id]


def _apply(task: A2ATask, event: Mapping[str, Any]) -> None:
    """Apply an event of its session to a task."""
    match event.get("type"):
        case "assistant":
            if text := text_of(event):
                task.say(text)
        case "session_exited" | "session_stopped":
            task.move("completed")
        case "error":
            task.move("failed")
        case _:
            # Other events of sessions do not concern tasks.
            pass


_store = TaskStore()


# corvid's functions: the methods of one store for the whole process.
handle_task_send = _store.send
handle_task_get = _store.get
clear_task_store = _store.clear

"""A process manager of corvid's kind: a task sent to it is a session, and goes on as that does.

Run: python examples/from_corvid.py
"""

from dragoman.compat.corvid import A2ATaskDeps, handle_task_get, handle_task_send


class Manager:
    """Runs sessions; this one answers at once and is done."""

    def subscribe(self, session_id, callback):
        self.tell = callback

    def start_process(self, session, prompt, options):
        said = {"content": f"Worked on: {prompt}"}
        self.tell(session["id"], {"type": "assistant", "message": said})
        self.tell(session["id"], {"type": "session_exited"})


agents = [{"id": "a-1", "name": "Worker", "defaultProjectId": "p-1"}]
deps = A2ATaskDeps("db", Manager(), lambda db: agents, lambda db, given: {"id": "s-1", **given})
task = handle_task_get(handle_task_send(deps, {"message": "the report"}).id)
print(task.state, "by session", task.session_id)
print(task.messages[-1]["parts"][0]["text"])

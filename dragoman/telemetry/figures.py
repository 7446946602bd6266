"""All metrics, by name.

Labels are few and have a fixed set of values: agents, operations, states, reasons; never ids,
owners or paths, of which callers could make any number.
"""

import functools
import os
import sys
import time
from collections.abc import Mapping

from dragoman.telemetry.metrics import SIZES, Counter, Gauge, Histogram, Labels

# Requests
requests = Counter(
    "dragoman_requests_total",
    "Requests answered; outcome is ok or the name of an error.",
    "operation",
    "binding",
    "version",
    "outcome",
)
request_seconds = Histogram(
    "dragoman_request_seconds",
    "Seconds from a request to its answer, or to the first event of a stream.",
    "operation",
)
refusals = Counter(
    "dragoman_refusals_total",
    "Requests refused once they were read: 401, 403, 429, 503, or guard.",
    "reason",
)
streams = Gauge("dragoman_streams_open", "Streams being read.")
streams_cut = Counter(
    "dragoman_streams_cut_total",
    "Streams that ended before their task did: stopping, gone (the reader), or failed.",
    "reason",
)

# Connections; `dragoman serve` alone has them
connections = Gauge("dragoman_connections_open", "Connections of callers.")
connections_taken = Gauge(
    "dragoman_connections_total", "Connections that were taken.", kind="counter"
)
connection_refusals = Gauge(
    "dragoman_connection_refusals_total",
    "Requests refused before they were read, and connections closed, by reason.",
    "reason",
    kind="counter",
)

# Tasks
tasks_started = Counter("dragoman_tasks_started_total", "Tasks begun.", "agent", otel="agent.tasks")
tasks_ended = Counter("dragoman_tasks_ended_total", "Tasks that ended.", "agent", "state")
tasks_running = Gauge(
    "dragoman_tasks_running",
    "Tasks whose code is under way here.",
    "agent",
    otel="agent.active_tasks",
)
messages_waiting = Gauge("dragoman_messages_waiting", "Messages behind running tasks.", "agent")
turn_seconds = Histogram(
    "dragoman_turn_seconds",
    "Seconds an agent's code worked on a message, waiting included.",
    "agent",
    otel="agent.loop.duration",
    scale=1000.0,
)
steps = Counter(
    "dragoman_steps_total", "Durable steps done: ok or failed.", "outcome", otel="tool.executions"
)
step_seconds = Histogram(
    "dragoman_step_seconds",
    "Seconds a durable step took.",
    otel="tool.execution.duration",
    scale=1000.0,
)
takeovers = Counter("dragoman_takeovers_total", "Tasks taken over from dead workers.", "agent")
loop_blocked = Counter(
    "dragoman_loop_blocked_total",
    "How often code held the event loop for too long; without an agent it is in none of its tasks.",
    "agent",
    "skill",
)
loop_blocked_seconds = Counter(
    "dragoman_loop_blocked_seconds_total",
    "Seconds for which it did.",
    "agent",
    "skill",
)

# Store
commits = Counter("dragoman_store_commits_total", "Transactions: ok or failed.", "outcome")
commit_seconds = Histogram("dragoman_store_commit_seconds", "Seconds the disk took to commit.")
commit_writes = Histogram(
    "dragoman_store_commit_writes", "Writes that shared a transaction.", bounds=SIZES
)
writes_waiting = Gauge("dragoman_store_writes_waiting", "Writes that wait for the disk.")

# Push
push_tries = Counter(
    "dragoman_push_tries_total",
    "Posts to receivers: taken, refused by us, unanswered, or answered with an error.",
    "outcome",
)
push_delivered = Counter("dragoman_push_delivered_total", "Events that receivers took.")
push_dead = Counter("dragoman_push_dead_letters_total", "Events that receivers never took.")
push_receivers = Gauge("dragoman_push_receivers", "Receivers being delivered to.")

# Rollouts
rollout_tasks = Counter(
    "dragoman_rollout_tasks_total",
    "Tasks by which new versions of agents were judged: agreed, structure, text or check (what "
    "differed), failed, or dropped (not copied).",
    "mode",
    "result",
)

# The process
build = Gauge("dragoman_build_info", "Always 1 for each process.", "version", "python")
memory = Gauge("process_resident_memory_bytes", "Memory in use.")
descriptors = Gauge("process_open_fds", "Files and sockets open.")
cpu = Gauge("process_cpu_seconds_total", "Processor time used.", kind="counter")


@functools.cache
def release() -> str:
    """Return the release that runs."""
    # The package was loaded before any module of it. What pip wrote of it is slow to read.
    return str(vars(sys.modules[__name__.partition(".")[0]])["__version__"])


def _build() -> Mapping[Labels, float]:
    return {(release(), sys.version.split()[0]): 1}


def _memory() -> float:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return 0.0


def _descriptors() -> float:
    folder = "/proc/self/fd" if sys.platform == "linux" else "/dev/fd"
    try:
        return len(os.listdir(folder))
    except OSError:
        return 0.0


build.watch_each(_build)
memory.watch(_memory)
descriptors.watch(_descriptors)
cpu.watch(time.process_time)

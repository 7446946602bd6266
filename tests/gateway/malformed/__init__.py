"""Scripts of agents that answer wrongly, and how a task that meets one has to end."""

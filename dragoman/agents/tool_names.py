"""Titles and tags of tools, derived from their names: for cards that show tools as skills."""

import re

# Dropped from titles.
OWN_PREFIX = "corvid_"
_SPELLED = {"github": "GitHub", "gitlab": "GitLab", "prs": "PRs", "urls": "URLs", "ids": "IDs"} | {
    word: word.upper()
    for word in ("pr", "api", "a2a", "mcp", "url", "id", "ai", "http", "json", "sql", "pdf", "ui")
}
# A category, and the words in a tool's name that make it one of them.
_CATEGORIES = {
    "github": {"github", "gitlab", "git", "repo", "repos", "pr", "prs", "commit", "branch"},
    "agents": {"a2a", "agent", "agents", "invoke", "delegate"},
    "communication": {"message", "messages", "notify", "email", "mail", "slack", "discord", "chat"},
    "memory": {"memory", "remember", "recall", "forget"},
    "scheduling": {"schedule", "schedules", "cron", "reminder", "calendar"},
    "tasks": {"task", "tasks", "work", "workflow", "issue", "issues", "todo"},
    "credits": {"credit", "credits", "wallet", "balance", "pay", "payment", "budget"},
    "files": {"file", "files", "directory", "folder", "upload", "download"},
    "search": {"search", "find", "query", "lookup"},
    "web": {"web", "url", "http", "fetch", "browse", "browser", "page"},
    "code": {"code", "lint", "test", "build", "compile", "execute"},
}
DEFAULT_TAGS = ["general"]


def title_of(name: str) -> str:
    """Return the title of a tool: `corvid_github_star_repo` is GitHub Star Repo."""
    words = _words(name.removeprefix(OWN_PREFIX)) or [name]
    return " ".join(_SPELLED.get(word.lower(), word[:1].upper() + word[1:]) for word in words)


def tags_of(name: str) -> list[str]:
    """Return the categories of a tool, by the words of its name."""
    words = {word.lower() for word in _words(name.removeprefix(OWN_PREFIX))}
    return [tag for tag, known in _CATEGORIES.items() if words & known] or list(DEFAULT_TAGS)


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])\d*|[A-Za-z][a-z0-9]*|\d+[a-z]*", name)

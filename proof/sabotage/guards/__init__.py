"""Guards by what they are against: in each file the checks, the removals and the table of both."""

"""What an operator sees of a running process: traces, metrics and logs. Free when switched off."""

"""What only people see: tables, and a line that says what is waited for. Begin with `table`."""

"""Questions about a whole capture: statistics, what differs between two, tables for SQL."""

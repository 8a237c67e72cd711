"""Rules: what decided about a packet, read from the node and never written to it."""

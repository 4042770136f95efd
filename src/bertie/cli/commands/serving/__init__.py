"""A server, and asking one."""

"""HTTP/1.1 for one small service: bounded in connections, in time and in memory, with TLS and passwords on request."""

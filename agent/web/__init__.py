"""An HTTP/1.1 server for one small service. Bounded in connections, time and memory. TLS and passwords are optional."""

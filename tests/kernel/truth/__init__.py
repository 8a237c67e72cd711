"""The tracer against the kernel's own account: one file a back end, each with run()."""

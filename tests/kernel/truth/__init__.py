"""Ground truth: what the kernel's own trace says of random rules and random packets, beside what the tracer says.

    run      the rounds: rules, packets, both accounts, and the comparison      packets   random packets
    legacy   legacy iptables: a file like this one for each back end

A back end is a module with one class, Truth (see run.py for what it does).
"""

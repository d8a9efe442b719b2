"""Keeps off exclusive CPUs what belongs to no pod.

Interrupts, threads of the kernel, idle states and frequencies, services and sessions of the host,
ways of L3 caches.

Read in this order: `places` (where a setting is read and written, and what was there before),
`rows` (the table: which place is to have what), `shares` and `resctrl` (groups of caches), `host`
(observe, compare, save, write, read back).
The slices of the host's services are cgroups: their sets are enforced with those of the pods
(`agent.reconcile`), so that they shrink before a pod is given CPUs; what they had is kept here.
"""

"""Both listeners: aiohttp speaks HTTP, this package says who may be connected and for how long.

Handlers see `messages.Request` and answer with `messages.Response` or `messages.Stream`; nothing
else of the agent knows which library serves (docs/adr/0001-aiohttp-serves-both-listeners.md).
"""

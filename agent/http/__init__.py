"""HTTP/1.1 for both listeners: h11 reads and writes the protocol, asyncio the bytes.

Small on purpose: half of the agent's start and a quarter of its memory were a web framework, of
which it used ten routes (docs/performance.md).
"""

"""The only code that waits: calls functions, holds threads and asyncio tasks, and talks to
checkpointers."""

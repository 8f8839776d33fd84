"""Sessions of clients with a thread, by the Agent Streaming Protocol
(https://github.com/langchain-ai/agent-protocol/tree/main/streaming): commands begin runs, and
channels carry their events."""

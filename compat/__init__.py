"""Programs written for other libraries, served by this engine: loaded only by those who ask for it.

`langgraph` lets `import langgraph` find this engine; `langchain` understands LangChain's objects;
`deployment` reads what LangGraph's server is configured with.
"""

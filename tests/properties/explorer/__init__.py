"""An exhaustive search over what can happen to a thread: every order of the tasks' ends, every storing call failing,
being lost or ending the process, every next call of a client, two clients at once. `search` explores, the rules are in
`rules`, the programs in `programs`, the world in which the real engine runs step by step in `world`.
"""

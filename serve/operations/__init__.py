"""What operators of a server need: metrics, an audit log, the erasure of a user, and a description
of the API."""

"""The events of runs, as records: what every protocol encodes at its own edge."""

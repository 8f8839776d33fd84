"""Looking at runs: live, from what a run tells as it goes; and afterwards, from what its saver has
stored."""
